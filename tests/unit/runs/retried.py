"""Histories of episodes that were tried more than once."""

from stepwell.events.model import Event
from tests.unit.engine.stories import Story, timed_out


def requested(attempt: int = 1) -> Story:
    story = Story(attempt)
    story.request()
    return story


def told(attempt: int = 1, ending: str = "none") -> list[Event]:
    """An attempt of two steps and its end."""
    story = Story(attempt).begin().run(2)
    match ending:
        case "success":
            story.end()
        case "max_steps":
            story.end(success=False, reason="max_steps")
        case "aborted":
            story.abort()
        case "silent":
            story.facts.append(timed_out("agent", story.next_seq["agent"], attempt=attempt))
        case "host lost":
            story.fail("host_lost", named=False)
        case "none":
            pass
        case _:
            story.fail(ending)
    return story.facts


def histories() -> list[list[Event]]:
    """Eight episodes: two successes, a failure, two errors, one aborted, one running, one not taken yet."""
    attempts = [
        [told(1, "success")],
        [told(1, "sim_killed"), told(2, "success")],
        [told(1, "max_steps"), told(2, "success")],
        [told(1, "sim_killed")],
        [told(1, "sim_killed"), told(2, "sim_exception")],
        [told(1, "aborted")],
        [told(1, "host lost"), told(2)],
        [requested().facts],
    ]
    return [[fact for facts in told_of for fact in facts] for told_of in attempts]
