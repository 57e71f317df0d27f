"""A worker's figures for Prometheus. Names and meanings stand in docs/workers.md."""

from collections.abc import Iterator

from stepwell.adapters.workers.vitals import ALWAYS_SHOWN, Condition, WorkerVitals, now_us
from stepwell.exceptions import MissingPartError

try:
    from prometheus_client import CollectorRegistry, ProcessCollector
    from prometheus_client.exposition import choose_encoder
    from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric
    from prometheus_client.registry import Collector
except ImportError as error:
    raise MissingPartError("prometheus-client is not installed. Run: pip install 'stepwell[telemetry]'") from error

COUNTERS: dict[str, tuple[str, str]] = {
    "stepwell_records_total": ("Records processed.", "topic"),
    "stepwell_batches_total": ("Batches of records processed, each of one partition.", ""),
    "stepwell_dead_letters_total": ("Records that became dead letters.", "kind"),
    "stepwell_verdicts_total": ("Verdicts issued, amended ones counted again.", "outcome"),
    "stepwell_errors_total": ("Times that something went wrong: waits that began, transactions that failed.", ""),
    "stepwell_otlp_points_total": ("Points taken in by the OTLP receiver.", "signal"),
    "stepwell_otlp_rejected_total": ("Points and spans refused for good by the OTLP receiver.", "reason"),
    "stepwell_otlp_refused_requests_total": ("Whole requests refused by the OTLP receiver.", "reason"),
}
"""Counters that workers keep (`WorkerVitals.count`): what each counts, and the name of its label (empty: none)."""

CAUGHT_UP_LOOK_S = 5.0
"""How old a look at the log may be (s) that says that there is nothing to read."""

_PARTITION = ("consumer", "topic", "partition")


class WorkerMetrics(Collector):
    """Makes the figures at each scrape; nothing is kept.

    Args:
        vitals: what is known of the worker.
        version: of Stepwell.
        host: name of the machine.
    """

    def __init__(self, vitals: WorkerVitals, version: str, host: str) -> None:
        self._vitals = vitals
        self._labels = {"worker_id": vitals.worker_id, "kind": vitals.kind, "version": version, "host": host}
        self._registry = CollectorRegistry()
        self._registry.register(self)
        ProcessCollector(registry=self._registry)

    def page(self, accept: str) -> tuple[bytes, str]:
        """The figures now, in the form that the header ``Accept`` asks for, and the content type of it."""
        encode, content_type = choose_encoder(accept)
        return encode(self._registry), content_type

    def collect(self) -> Iterator[Metric]:
        """See `prometheus_client.registry.Collector`."""
        condition = self._vitals.condition()
        info = GaugeMetricFamily("stepwell_worker_info", "The worker; always 1.", labels=tuple(self._labels))
        info.add_metric(tuple(self._labels.values()), 1)
        yield info
        state = GaugeMetricFamily("stepwell_worker_state", "1 for the state that it is in.", labels=("state",))
        state.add_metric((condition.state,), 1)
        yield state
        yield from self._partitions(condition)
        yield GaugeMetricFamily(
            "stepwell_progress_age_seconds",
            "For how long nothing moved though there is something to read; 0 while it moves or is caught up.",
            value=condition.still_s if any(each.behind for each in condition.partitions) else 0.0,
        )
        yield GaugeMetricFamily(
            "stepwell_loop_age_seconds", "How long the last sign of life of its thread is ago.", value=condition.alive_s
        )
        if condition.look_age_s is not None:
            yield GaugeMetricFamily(
                "stepwell_log_look_age_seconds",
                "How old the look at the log is that the lag is counted from.",
                value=condition.look_age_s,
            )
        waiting = GaugeMetricFamily("stepwell_waiting", "1 while it waits for this.", labels=("for",))
        for what in sorted({*ALWAYS_SHOWN, *condition.waits}):
            waiting.add_metric((what,), float(what in condition.waits))
        yield waiting
        yield from _counted(condition)

    def _partitions(self, condition: Condition) -> Iterator[Metric]:
        events = GaugeMetricFamily(
            "stepwell_lag_events", "Offsets between the worker and the log's end at the last look.", labels=_PARTITION
        )
        seconds = GaugeMetricFamily(
            "stepwell_lag_seconds",
            "Age of the moment up to which everything logged is processed; 0 only when caught up as of a fresh look.",
            labels=_PARTITION,
        )
        rate = GaugeMetricFamily(
            "stepwell_events_per_second", "Offsets passed a second over the last minute.", labels=_PARTITION
        )
        now, fresh = now_us(), condition.look_age_s is not None and condition.look_age_s <= CAUGHT_UP_LOOK_S
        for each in condition.partitions:
            labels = (self._vitals.group or "", each.source.topic, str(each.source.partition))
            if each.behind is not None:
                events.add_metric(labels, each.behind)
            if each.behind == 0 and fresh:
                seconds.add_metric(labels, 0)
            elif each.complete_until is not None:
                seconds.add_metric(labels, max(now - each.complete_until, 0) / 1e6)
            if each.events_per_s is not None:
                rate.add_metric(labels, each.events_per_s)
        yield from (events, seconds, rate)


def _counted(condition: Condition) -> Iterator[Metric]:
    for name, (meaning, label) in COUNTERS.items():
        found = {key[1]: count for key, count in condition.counters.items() if key[0] == name}
        if not found and label:
            continue  # what it never counts is none of this worker's figures
        family = CounterMetricFamily(name, meaning, labels=(label,) if label else ())
        for value, count in sorted(found.items()) or [("", 0)]:
            family.add_metric((value,) if label else (), count)
        yield family
