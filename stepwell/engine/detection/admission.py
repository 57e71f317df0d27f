"""The order of requests: whose turn it is.

Among episodes that run side by side the quick ones finish first, and quick is often failed; so a window in the order of
finishing is biased. Rules over rates go by the order in which the episodes were asked for:

* ``verdict::expected`` gives an episode its place in the queue; it has its turn when its verdict is there and everybody
  before it has had theirs.
* A verdict waits at most the set's ``wait_s`` (log time) for slower ones. Then those before it pass their turn and
  are admitted when they come, as is a verdict that nobody expected.
* It also waits no longer than it stays in the window: `WINDOW_MAX` verdicts behind it end the wait too. And a queue of
  more than `QUEUE_MAX` lets its head pass.
"""

from stepwell.engine.detection.bearing import Entry
from stepwell.engine.detection.state import QUEUE_MAX, PolicyState


def expect(state: PolicyState, episode: str) -> list[Entry]:
    """Note that an episode was asked for; who has their turn because of it (only where the queue runs over)."""
    if state.entry(episode) is not None or episode in state.forgotten or episode in state.queue:
        state.ignored += 1
        return []
    state.queue[episode] = None
    if len(state.queue) <= QUEUE_MAX:
        return []
    del state.queue[next(iter(state.queue))]  # a head whose verdict is there never stays
    return _ready(state)


def arrived(state: PolicyState, entry: Entry) -> list[Entry]:
    """Note a first verdict, which stands in the window already; who has their turn because of it."""
    episode = entry.evidence.episode_id
    if episode not in state.queue:
        return [entry]
    state.held[episode] = state.now
    return _ready(state)


def overdue(state: PolicyState, wait_us: int) -> list[Entry]:
    """Who has waited long enough, with those before them that are there."""
    out: list[Entry] = []
    while state.held:
        first = next(iter(state.held))
        if state.held[first] + wait_us > state.now:
            break
        out += through(state, first)
    return out


def through(state: PolicyState, episode: str) -> list[Entry]:
    """Let everybody before an episode pass that is not there, and give the others and itself their turn."""
    out: list[Entry] = []
    while episode in state.queue:
        head = next(iter(state.queue))
        del state.queue[head]
        if state.held.pop(head, None) is not None:
            out.append(state.window[head])
    return out + _ready(state)


def _ready(state: PolicyState) -> list[Entry]:
    out: list[Entry] = []
    while state.queue:
        head = next(iter(state.queue))
        if head not in state.held:
            break
        del state.queue[head], state.held[head]
        out.append(state.window[head])
    return out
