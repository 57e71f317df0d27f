"""Fleet: what runs now, what is stuck, and what has been done lately."""

from stepwell.adapters.dashboards.model import Column, Dashboard, Panel, Threshold
from stepwell.adapters.dashboards.variables import POLICY, RUN, TASK
from stepwell.adapters.dashboards.words import OUTCOMES, STATES

_EPISODE = Column("episode_id", "episode", "id", leads_to="episode", leads_where="episode")

FLEET = Dashboard(
    name="fleet",
    title="Fleet",
    about="What runs now, what is stuck and on whom, and what the simulators and robots got done.",
    variables=(POLICY, TASK, RUN),
    panels=(
        Panel(
            query="now", title="Now", kind="stat", width=24, height=4,
            about="Attempts that run, that got stuck, that nobody has taken yet; episodes that were asked for in the "
            "time shown and have ended, and their success rate. The last tile says whether the tables are up to date: "
            "what stands beside it is no truer than that.",
            columns=(
                Column("running", "running", "count"),
                Column("stuck", "stuck", "count", (Threshold(1, "bad"),)),
                Column("waiting", "waiting for a host", "count"),
                Column("ended", "ended", "count"),
                Column("success_rate", "success rate", "ratio"),
                Column("tables", "tables are", words=STATES),
            ),
        ),
        Panel(
            query="outcomes", title="Episodes that ended", kind="time", unit="count", stacked=True,
            about="By outcome, at the time they were asked for. An amended verdict moves its episode from one colour "
            "to another.",
            colours=OUTCOMES,
        ),
        Panel(
            query="rate", title="Steps per second", kind="time", unit="/s",
            about="Simulator steps that each host got done, over the whole of each bucket, idle time included.",
        ),
        Panel(
            query="stuck", title="Stuck", kind="table", width=24, height=6,
            about="Attempts about which nothing was logged for longer than the setting stuck_after_s, and who owes the "
            "next event.",
            columns=(
                _EPISODE, Column("stuck_on", "waits for"), Column("stuck_since", "since", "moment"),
                Column("stuck_s", "for", "s", (Threshold(60, "warn"), Threshold(300, "bad"))), Column("phase", "phase"),
                Column("policy", "policy"), Column("task", "task"), Column("steps_done", "steps", "count"),
                Column("host", "host"),
            ),
        ),
        Panel(
            query="running", title="Running", kind="table", width=24, height=9,
            about="Attempts that a host has taken and that have not ended, the most idle first.",
            columns=(
                _EPISODE, Column("policy", "policy"), Column("task", "task"), Column("scene", "scene"),
                Column("phase", "phase"), Column("owes", "owes"), Column("steps_done", "steps", "count"),
                Column("max_steps", "of", "count"), Column("running_s", "for", "s"),
                Column("idle_s", "idle for", "s", (Threshold(30, "warn"), Threshold(300, "bad"))),
                Column("host", "host"),
            ),
        ),
        Panel(
            query="runs", title="Newest runs", kind="table", width=24, height=9,
            about="Success rates leave errors out; the interval is Wilson's at 95 %.",
            columns=(
                Column("run_id", "run", "id"), Column("first_requested_at", "asked for", "moment"),
                Column("planned", "planned", "count"), Column("running", "running", "count"),
                Column("pending", "pending", "count"), Column("scored", "scored", "count"),
                Column("errored", "errors", "count", (Threshold(1, "warn"),)),
                Column("success_rate", "success rate", "ratio"), Column("success_rate_low", "at least", "ratio"),
                Column("success_rate_high", "at most", "ratio"), Column("last_ended_at", "last ended", "moment"),
            ),
        ),
    ),
)  # fmt: skip
