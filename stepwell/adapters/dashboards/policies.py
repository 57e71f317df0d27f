"""Policy comparison: which policy is better, where, and how sure that is."""

from stepwell.adapters.dashboards.model import Column, Dashboard, Panel
from stepwell.adapters.dashboards.variables import POLICY, TASK

POLICIES = Dashboard(
    name="policies",
    title="Policy comparison",
    about="Which policy succeeds where, and how sure that is. Evaluations alone; regression runs are left out.",
    variables=(POLICY, TASK),
    since="30d",
    panels=(
        Panel(
            query="rates", title="Success rate with its 95 % interval", kind="interval", unit="ratio", maximum=1.0,
            about="Each version and checkpoint that was tested. Two policies whose intervals overlap widely are not "
            "told apart by these episodes. Errors are nobody's failure and are left out.",
            columns=(
                Column("policy", "policy"), Column("success_rate", "success rate", "ratio"),
                Column("success_rate_low", "at least", "ratio"), Column("success_rate_high", "at most", "ratio"),
                Column("scored", "episodes", "count"), Column("errored", "errors", "count"),
            ),
        ),
        Panel(
            query="rates_over_time", title="Success rate over time", kind="time", unit="ratio", maximum=1.0,
            about="By the time the episodes were asked for. A bucket of few episodes swings widely.",
        ),
        Panel(
            query="by_scene", title="Success rate by scene", kind="matrix", unit="ratio", maximum=1.0,
            about="One cell a policy and scene; empty where none was tested.",
            columns=(
                Column("policy", "policy"), Column("scene", "scene"), Column("success_rate", "success rate", "ratio"),
            ),
        ),
        Panel(
            query="by_perturbation", title="Success rate by perturbation", kind="matrix", unit="ratio", maximum=1.0,
            about="One cell a policy and perturbation; empty where none was tested.",
            columns=(
                Column("policy", "policy"), Column("perturbation", "perturbation"),
                Column("success_rate", "success rate", "ratio"),
            ),
        ),
        Panel(
            query="weakest", title="Weakest cells", kind="table", width=24, height=10,
            about="Cells of the matrix by what their success rate may be at most (upper end of the 95 % interval).",
            columns=(
                Column("policy", "policy"), Column("task", "task"), Column("scene", "scene"),
                Column("perturbation", "perturbation"), Column("scored", "episodes", "count"),
                Column("success_rate", "success rate", "ratio"), Column("success_rate_low", "at least", "ratio"),
                Column("success_rate_high", "at most", "ratio"),
            ),
        ),
        Panel(
            query="failure_types", title="Failure types", kind="matrix", unit="count", width=24, height=6,
            about="Episodes that did not succeed, by policy and type.",
            columns=(
                Column("policy", "policy"), Column("failure_type", "failure type"),
                Column("episodes", "episodes", "count"),
            ),
        ),
        Panel(
            query="requests", title="Requests to retrain", kind="table", width=24,
            about="The newest, with the answer that counts.",
            columns=(
                Column("opened_at", "opened", "moment"), Column("policy", "policy"),
                Column("failure_type", "failure type"), Column("rule", "rule"), Column("status", "status"),
                Column("evidence_episodes", "evidence", "count"), Column("trainer", "trainer"),
                Column("new_checkpoint", "new checkpoint", "id"), Column("trigger_id", "trigger", "id"),
            ),
        ),
    ),
)  # fmt: skip
