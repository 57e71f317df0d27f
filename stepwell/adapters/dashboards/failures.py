"""Failures: what fails, where, since when, and which episodes to look at."""

from stepwell.adapters.dashboards.model import Column, Dashboard, Panel, Threshold
from stepwell.adapters.dashboards.variables import POLICY, TASK

FAILURES = Dashboard(
    name="failures",
    title="Failures",
    about="What fails, where and by whose fault, which patterns were found, and what could not be used at all.",
    variables=(POLICY, TASK),
    panels=(
        Panel(
            query="counts", title="In the time shown", kind="stat", width=24, height=4,
            about="Episodes by how they failed; records that were set aside; requests to retrain that are still open.",
            columns=(
                Column("failed", "failures", "count"), Column("errored", "errors", "count", (Threshold(1, "warn"),)),
                Column("aborted", "aborted", "count"), Column("failure_rate", "failure rate", "ratio"),
                Column("dead_letters", "records set aside", "count", (Threshold(1, "warn"),)),
                Column("open_requests", "open requests", "count"),
            ),
        ),
        Panel(
            query="types", title="Failures by type", kind="time", unit="count", stacked=True,
            about="Episodes that did not succeed, at the time they were asked for.",
        ),
        Panel(
            query="faults", title="Failures by fault", kind="time", unit="count", stacked=True,
            about="Who ended them: the policy, the simulator, infrastructure or an operator.",
        ),
        Panel(
            query="by_scene", title="Type by scene", kind="matrix", unit="count", width=14,
            about="Where each type of failure happens.",
            columns=(
                Column("failure_type", "failure type"), Column("scene", "scene"),
                Column("episodes", "episodes", "count"),
            ),
        ),
        Panel(
            query="by_perturbation", title="Type by perturbation", kind="matrix", unit="count", width=10,
            about="Under what each type of failure happens.",
            columns=(
                Column("failure_type", "failure type"), Column("perturbation", "perturbation"),
                Column("episodes", "episodes", "count"),
            ),
        ),
        Panel(
            query="newest", title="Newest failures", kind="table", width=24, height=11,
            about="Attempts that did not succeed. The episode leads to its dashboard; the static page holds one "
            "episode only, and stepwell dashboard --episode ID draws another.",
            columns=(
                Column("ended_at", "ended", "moment"),
                Column("episode_id", "episode", "id", leads_to="episode", leads_where="episode"),
                Column("attempt", "attempt", "count"), Column("policy", "policy"), Column("task", "task"),
                Column("scene", "scene"), Column("perturbation", "perturbation"), Column("outcome", "outcome"),
                Column("failure_type", "failure type"), Column("fault", "fault of"), Column("message", "message"),
            ),
        ),
        Panel(
            query="patterns", title="Failure patterns", kind="table",
            about="What the detectors found. stepwell retrain show TRIGGER has the evidence.",
            columns=(
                Column("detected_at", "found", "moment"),
                Column("policy", "policy", leads_to="policy", leads_where="policies"),
                Column("failure_type", "failure type"), Column("rule", "rule"),
                Column("evidence_episodes", "evidence", "count"), Column("detail", "seen"),
                Column("trigger_id", "trigger", "id"),
            ),
        ),
        Panel(
            query="dead_letters", title="Records set aside", kind="table",
            about="By kind and reason, with the newest one's detail.",
            columns=(
                Column("kind", "kind"), Column("reason", "reason"), Column("records", "records", "count"),
                Column("newest_at", "newest", "moment"), Column("detail", "detail"),
            ),
        ),
    ),
)  # fmt: skip
