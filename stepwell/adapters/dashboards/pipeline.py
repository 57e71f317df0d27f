"""Pipeline health: how far behind the workers are, what they wait for, what they set aside."""

from stepwell.adapters.dashboards.model import Column, Dashboard, Panel, PromQuery, Threshold
from stepwell.adapters.dashboards.words import STATES

_LATE = (Threshold(60, "warn"), Threshold(600, "bad"))
# The worker's name stands on its info alone.
_PROGRESS = "stepwell_progress_age_seconds * on (instance) group_left (kind, worker_id) stepwell_worker_info"

PIPELINE = Dashboard(
    name="pipeline",
    title="Pipeline health",
    about="How far behind each worker is, whether it moves, what it waits for, and what it could not use.",
    since="6h",
    panels=(
        Panel(
            query="now", title="Now", kind="stat", width=24, height=4,
            about="As the projector last reported it. Silent: nobody reports that position any more, so it may be "
            "further behind than it looks.",
            columns=(
                Column("tables", "tables are", words=STATES), Column("age_s", "age of the tables", "s", _LATE),
                Column("behind_events", "events behind", "count"),
                Column("behind_s", "longest behind", "s", _LATE),
                Column("silent", "silent positions", "count", (Threshold(1, "bad"),)),
                Column("dead_letters", "set aside in the time shown", "count", (Threshold(1, "warn"),)),
            ),
        ),
        Panel(
            query="lag_s", title="Behind, in seconds", kind="table", unit="s", thresholds=_LATE,
            about="Age of the oldest record that each consumer has not handled yet; 0 only where all was handled as of "
            "a moment ago.",
            prometheus=(PromQuery("max by (consumer, topic) (stepwell_lag_seconds)", "{{consumer}} {{topic}}"),),
            columns=(
                Column("consumer", "consumer"), Column("topic", "topic"), Column("behind_s", "behind", "s", _LATE),
                Column("behind_events", "events", "count"), Column("events_per_s", "events/s", "/s"),
            ),
        ),
        Panel(
            query="progress", title="Since the last progress", kind="table", unit="s",
            thresholds=(Threshold(60, "warn"), Threshold(120, "bad")),
            about="Time since a worker moved on. From Prometheus 0 while it is caught up; from the database the age of "
            "its last progress.",
            prometheus=(PromQuery(_PROGRESS, "{{kind}} {{worker_id}}"),),
            columns=(
                Column("worker_id", "worker", "id"), Column("kind", "kind"), Column("state", "state", words=STATES),
                Column("progress_s", "last progress", "s"), Column("waits_for", "waits for"),
            ),
        ),
        Panel(
            query="rates", title="Records per second", kind="table", unit="/s", width=8,
            about="What the workers handle, by topic.",
            prometheus=(PromQuery("sum by (topic) (rate(stepwell_records_total[$__rate_interval]))", "{{topic}}"),),
            columns=(
                Column("topic", "topic"), Column("events_per_s", "events/s", "/s"),
                Column("consumers", "consumers", "count"),
            ),
        ),
        Panel(
            query="dead_letters", title="Records set aside", kind="time", unit="count", stacked=True, width=8,
            about="Unreadable, refused, after the seal, or against the protocol.",
            prometheus=(
                PromQuery("sum by (kind) (increase(stepwell_dead_letters_total[$__rate_interval]))", "{{kind}}"),
            ),
        ),
        Panel(
            query="points", title="Telemetry points per second", kind="time", unit="/s", width=8,
            about="Points that the OTLP receiver took and refused. The static page shows what reached the database.",
            prometheus=(
                PromQuery("sum(rate(stepwell_otlp_points_total[$__rate_interval]))", "taken"),
                PromQuery("sum(rate(stepwell_otlp_rejected_total[$__rate_interval]))", "refused"),
            ),
        ),
        Panel(
            query="lag", title="Each partition", kind="table", width=24, height=10,
            about="The view pipeline_lag, the worst first. It can be read while the worker is dead: the last column "
            "says as of when.",
            columns=(
                Column("consumer", "consumer"), Column("topic", "topic"), Column("partition", "partition", "id"),
                Column("state", "state", words=STATES), Column("behind_events", "events behind", "count"),
                Column("behind_s", "behind", "s", _LATE), Column("events_per_s", "events/s", "/s"),
                Column("catch_up_s", "caught up in", "s"), Column("progressed_at", "last progress", "moment"),
                Column("waits_for", "waits for"), Column("last_error", "last error"),
                Column("seen_at", "seen", "moment"),
            ),
        ),
        Panel(
            query="workers", title="Workers", kind="table", width=24, height=9,
            about="Each worker's newest report, the worst first. One that was killed could not say so: it is silent.",
            columns=(
                Column("worker_id", "worker", "id"), Column("kind", "kind"), Column("host", "host"),
                Column("state", "state", words=STATES),
                Column("heard_s_ago", "heard of", "s", (Threshold(30, "warn"), Threshold(300, "bad"))),
                Column("progress_s", "last progress", "s"), Column("waits_for", "waits for"),
                Column("last_error", "last error"), Column("last_error_at", "at", "moment"),
                Column("version", "version"),
            ),
        ),
    ),
)  # fmt: skip
