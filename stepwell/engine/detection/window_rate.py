"""More than a share of the last ``window`` episodes of a key failed, of at least ``minimum``."""

from bisect import bisect_left, insort

from stepwell.engine.detection.in_order import InOrderJudge
from stepwell.engine.detection.ledger import Sample
from stepwell.engine.detection.state import Cell, Stream, Tally
from stepwell.engine.ruleset import WindowRateRule


class WindowRateJudge(InOrderJudge):
    """Judges one rule of the kind ``window_rate``."""

    rule: WindowRateRule

    def __init__(self, rule: WindowRateRule, digest: str) -> None:
        super().__init__(rule, digest)
        self.promise = (
            f"more than {rule.limit:g} of the last {rule.window} first attempts (of at least {rule.minimum}), for one "
            f"{self.reading.per_text}, failed in the way that the rule counts, in the order of requests; errors, "
            "aborted and helped episodes were left out. By chance alone, at a failure rate of "
            f"{rule.promise.baseline_rate:g}, that comes once in {rule.promise.average_run_length:g} episodes or more "
            "on average"
        )

    def over(self, sample: Sample) -> bool:
        """The share as a quotient: it equals a limit written as a decimal exactly where it ought to."""
        return sample.episodes >= self.rule.minimum and sample.failures / sample.episodes > self.rule.limit

    def seen(self, sample: Sample) -> str:
        return f"{sample.failures} of {sample.episodes} episodes failed; limit {self.rule.limit:g}"

    def put(self, stream: Stream, rank: int, failed: bool, cell: Cell) -> None:
        """Count an episode at its place; the oldest leaves a full window."""
        insort(stream.window, (rank, failed, cell))
        stream.tally.add(failed)
        if len(stream.window) > self.rule.window:
            oldest, had_failed, _ = stream.window.pop(0)
            stream.tally.add(had_failed, -1)
            stream.since = oldest + 1

    def take_out(self, stream: Stream, rank: int, failed: bool, cell: Cell) -> None:
        """Leave a gap: what left the window before does not come back."""
        del cell
        del stream.window[bisect_left(stream.window, (rank, False, ("", "")))]
        stream.tally.add(failed, -1)

    def cells_of(self, stream: Stream) -> dict[Cell, Tally]:
        """Of the episodes in the window."""
        cells: dict[Cell, Tally] = {}
        for _, failed, cell in stream.window:
            cells.setdefault(cell, Tally()).add(failed)
        return cells
