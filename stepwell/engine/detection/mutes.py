"""Mutes of one policy: for which rules nobody is asked to retrain. Pure.

By rule (empty: all), until when (µs; 0: until unmuted). The last word on a rule counts: a mute that is over already
when it is recorded ends the one that runs. The detector and whoever reads the log for people judge by these functions.
"""

from typing import Literal

MUTES_MAX = 4096
"""Mutes of one policy that run at a time; one more is refused, and the dead letters say so."""

Mutes = dict[str, int]


def over(mutes: Mutes, now: int) -> bool:
    """Take out those whose time has come; whether there were any."""
    ended = [rule for rule, until in mutes.items() if until and until <= now]
    for rule in ended:
        del mutes[rule]
    return bool(ended)


def mute(mutes: Mutes, rule: str | None, until: int | None, now: int) -> Literal["runs", "ended", "nothing", "refused"]:
    """Note a mute that is recorded now.

    Returns:
        ``runs``; ``ended``: it was over already, and ended the one that ran; ``nothing``: it was over, and none ran;
        ``refused``: too many run.
    """
    name = rule or ""
    if until is not None and until <= now:
        return "nothing" if mutes.pop(name, None) is None else "ended"
    if name not in mutes and len(mutes) >= MUTES_MAX:
        return "refused"
    mutes[name] = until or 0
    return "runs"


def unmute(mutes: Mutes, rule: str | None) -> bool:
    """Note that a mute is ended; whether it ran."""
    return mutes.pop(rule or "", None) is not None


def holds(mutes: Mutes, rule: str) -> bool:
    """Whether requests of this rule are held back."""
    return bool(mutes) and ("" in mutes or rule in mutes)
