"""Episode: what happened in one of them."""

from stepwell.adapters.dashboards.model import Column, Dashboard, Panel
from stepwell.adapters.dashboards.variables import EPISODE
from stepwell.adapters.dashboards.words import OUTCOMES

EPISODE_DASHBOARD = Dashboard(
    name="episode",
    title="Episode",
    about="One episode: its result, its attempts, its steps, what was found in it and what was set aside.",
    variables=(EPISODE,),
    since="7d",
    panels=(
        Panel(
            query="result", title="Result", kind="stat", width=24, height=4,
            about="Of the first attempt that was scored, else of the last one.",
            columns=(
                Column("outcome", "outcome", words=OUTCOMES), Column("attempt", "attempt", "count"),
                Column("failure_type", "failure type"), Column("fault", "fault of"),
                Column("n_steps", "steps", "count"), Column("total_reward", "total reward", "number"),
                Column("completeness", "record is"),
            ),
        ),
        Panel(
            query="asked", title="What was asked for", kind="table", width=9, height=10,
            about="The cell of the matrix it belongs to, and what the verdict says.",
            columns=(Column("what", "what"), Column("value", "value")),
        ),
        Panel(
            query="measured", title="Measured meanwhile", kind="table", width=15, height=10,
            about="Telemetry that names this episode.",
            columns=(
                Column("metric", "metric"), Column("unit", "unit"), Column("worker_id", "worker"),
                Column("points", "values", "count"), Column("mean", "mean", "number"), Column("min", "least", "number"),
                Column("max", "most", "number"),
            ),
        ),
        Panel(
            query="reward", title="Reward by step", kind="trend",
            about="Of the attempt that counts. NaN and infinities leave a gap.",
            columns=(Column("step", "step", "count"), Column("reward", "reward", "number")),
        ),
        Panel(
            query="speed", title="Time by step", kind="trend", unit="s",
            about="Wall time that the simulator took for the step, and that the policy took for the action it applied.",
            columns=(
                Column("step", "step", "count"), Column("step_wall_s", "simulator", "s"),
                Column("inference_s", "policy", "s"),
            ),
        ),
        Panel(
            query="attempts", title="Attempts", kind="table", width=24, height=6,
            about="What infrastructure ended may be tried again; a policy's failure stands.",
            columns=(
                Column("attempt", "attempt", "count"), Column("phase", "phase"), Column("outcome", "outcome"),
                Column("host", "host"), Column("claimed_at", "taken", "moment"), Column("next_step", "steps", "count"),
                Column("last_event_at", "last event", "moment"), Column("revision", "revision", "count"),
                Column("sealed", "sealed"), Column("retry_reason", "tried again because"),
            ),
        ),
        Panel(
            query="labels", title="Found by step rules", kind="table", width=9,
            about="Labels in the verdict and the step at which each was first found.",
            columns=(Column("attempt", "attempt", "count"), Column("label", "label"), Column("step", "step", "count")),
        ),
        Panel(
            query="spans", title="Spans", kind="table", width=15,
            about="Operations that name this episode, as OpenTelemetry's SDKs sent them.",
            columns=(
                Column("started_at", "began", "moment"), Column("took_s", "took", "s"), Column("name", "name"),
                Column("kind", "kind"), Column("status", "status", words={"error": "bad"}),
                Column("status_message", "message"), Column("worker_id", "worker"),
            ),
        ),
        Panel(
            query="set_aside", title="Set aside", kind="table", width=24, height=6,
            about="Records of this episode that no verdict counts: violations of the protocol, facts after the seal.",
            columns=(
                Column("attempt", "attempt", "count"), Column("kind", "kind"), Column("reason", "reason"),
                Column("detail", "detail"), Column("event_type", "event"), Column("source_topic", "topic"),
                Column("source_partition", "partition", "id"), Column("source_offset", "offset", "id"),
                Column("logged_at", "logged", "moment"),
            ),
        ),
    ),
)  # fmt: skip
