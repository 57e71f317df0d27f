"""Rules that judge at every episode and yet keep a level over the whole stream: by e-processes.

The mathematics stand in `stepwell.engine.detection.evidence`; here the episodes are counted. An e-process is compared
with ``1 / level``: by Ville's inequality it ever reaches that with a chance of at most ``level`` where the hypothesis
holds (J. Ville, Étude critique de la notion de collectif, Gauthier-Villars 1939).
"""

from stepwell.engine.detection.bearing import Entry, Key
from stepwell.engine.detection.evidence import rate_evidence, shift_evidence
from stepwell.engine.detection.in_order import InOrderJudge
from stepwell.engine.detection.ledger import Sample
from stepwell.engine.detection.state import RuleState, Stream, Tally
from stepwell.engine.ruleset import RateRule, ShiftRule


class RateJudge(InOrderJudge):
    """Judges one rule of the kind ``rate``: the failure rate of a key is beyond a limit."""

    rule: RateRule

    def __init__(self, rule: RateRule, digest: str) -> None:
        super().__init__(rule, digest)
        self._threshold = 1.0 / rule.level
        self.promise = (
            f"the chance that this ever comes for one {self.reading.per_text} while its failure rate is at most "
            f"{rule.limit:g} is at most {rule.level:g}, however long the stream (an e-process over first attempts, in "
            "the order of requests; errors, aborted and helped episodes were left out)"
        )

    def over(self, sample: Sample) -> bool:
        failures, episodes = sample.failures, sample.episodes
        if episodes < self.rule.minimum or failures / episodes <= self.rule.limit:
            return False  # within the limit there is no evidence against it: the e-process is at most 1
        return rate_evidence(failures, episodes, self.rule.limit).at_least(self._threshold)

    def seen(self, sample: Sample) -> str:
        evidence = rate_evidence(sample.failures, sample.episodes, self.rule.limit)
        return (
            f"{sample.failures} of {sample.episodes} episodes failed; evidence {evidence} against a rate of at most "
            f"{self.rule.limit:g}, {self._threshold:g} needed"
        )


class ShiftJudge(InOrderJudge):
    """Judges one rule of the kind ``shift``: a checkpoint fails more often than the one before it.

    "The one before" is the one that was seen last before the first episode of this one, within the same parts; or the
    first with the rule's ``baseline`` for its checkpoint. Its episodes count whenever they come.
    """

    rule: ShiftRule

    def __init__(self, rule: ShiftRule, digest: str) -> None:
        super().__init__(rule, digest)
        self._threshold = 1.0 / rule.level
        self.promise = (
            f"the chance that this ever comes for one {self.reading.per_text} while it fails no more often than the "
            f"checkpoint that it is compared with is at most {rule.level:g}, however long the streams (an e-process "
            "over first attempts, in the order of requests; errors, aborted and helped episodes were left out)"
        )

    def over(self, sample: Sample) -> bool:
        new, old, minimum = sample.episodes, sample.old_episodes, self.rule.minimum
        if sample.base is None or new < minimum or old < minimum:
            return False
        if sample.failures * old <= sample.old_failures * new:
            return False  # it does not fail more often: the e-process is at most 1
        evidence = shift_evidence(sample.old_failures, old, sample.failures, new)
        return evidence.at_least(self._threshold)

    def seen(self, sample: Sample) -> str:
        evidence = shift_evidence(sample.old_failures, sample.old_episodes, sample.failures, sample.episodes)
        return (
            f"{sample.failures} of {sample.episodes} episodes failed, {sample.old_failures} of {sample.old_episodes} "
            f"of the checkpoint before; evidence {evidence}, {self._threshold:g} needed"
        )

    def sample_of(self, stream: Stream, last: int) -> Sample:
        new, old = stream.tally, stream.old
        return Sample(
            stream.since, last, new.failures, new.episodes, stream.base, stream.base_since, old.failures, old.episodes
        )

    def key_text(self, policy: str, key: Key, sample: Sample) -> str:
        base = sample.base
        assert base is not None
        return f"{key.text(policy)} baseline-version={base.policy_version} baseline={base.checkpoint or 'none'}"

    def begin(self, own: RuleState, key: Key, stream: Stream) -> None:
        """Choose what the new key is compared with."""
        self._compare(own, key, stream)

    def observe(self, own: RuleState, key: Key, entry: Entry, failed: bool, sign: int) -> list[tuple[Key, Stream]]:
        """Count the episode for its own key's history, and for the keys that are compared with it."""
        rank = entry.rank
        history = own.streams.get(key)
        if history is not None and rank >= history.begun:
            history.total.add(failed, sign)
        touched = []
        for other_key in own.compared.get(key, ()):
            other = own.streams[other_key]
            if rank >= other.base_since:
                other.old.add(failed, sign)
                touched.append((other_key, other))
        if key.checkpoint == self.rule.baseline is not None:
            # A baseline that is named, but comes after what is compared with it; its history holds this episode.
            for other_key in own.compared.get(None, ()):
                other = own.streams[other_key]
                if other_key != key and self._compare(own, other_key, other) == key:
                    touched.append((other_key, other))
        return touched

    def restarted(self, stream: Stream, rank: int) -> None:
        """Both sides start anew, or the same lucky episodes of the old checkpoint would be used twice."""
        stream.old = Tally()
        stream.base_since = rank

    def _compare(self, own: RuleState, key: Key, stream: Stream) -> Key | None:
        """Choose the key that this one is compared with, if it is there, and take its history for the old side."""
        wanted = self.rule.baseline
        if wanted is not None and key.checkpoint == wanted:
            return None
        others = [(other.order, item) for item, other in own.streams.items() if item.parts == key.parts and item != key]
        if wanted is None:
            found = max((pair for pair in others if pair[0] < stream.order), default=None)
        else:
            found = min((pair for pair in others if pair[1].checkpoint == wanted), default=None)
        if found is None:
            return None
        base = own.streams[found[1]]
        stream.base, stream.base_since = found[1], base.begun
        stream.old = Tally(base.total.failures, base.total.episodes)
        own.changed()
        return stream.base
