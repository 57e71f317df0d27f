"""Definitions of policies, scenes and perturbations: how they travel with requests, and what the log has of them."""

import json
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, ValidationError

from stepwell.adapters.logs.reading import read_batches
from stepwell.adapters.runs.spec import (
    PerturbationEntry,
    PolicyEntry,
    SceneEntry,
    StepBudget,
    TimeoutEntry,
    canonical,
)
from stepwell.engine.ports import MessageLog
from stepwell.events.codec import Codec
from stepwell.events.model import EpisodeRequested
from stepwell.events.topics import EPISODE_EVENTS
from stepwell.exceptions import EventError, SpecError
from stepwell.redaction import HIDDEN, is_secret_key, redact_text

FORMAT = "stepwell-definition/1"
REQUEST_TYPE = ("ce_type", EpisodeRequested.TYPE.encode())


class Definition(BaseModel):
    """What has to be known to run a cell again with any seed: the ``definition_json`` of a request.

    Attributes:
        policy, scene, perturbation: as the task spec has them; ``{checkpoint}`` still stands in the policy's options.
        max_steps: the step budget in force.
        timeouts: how long the host waited for each component.
        directory: where the run was started; relative paths in the options count from there.
        hidden: values left out since they look like secrets, e.g. ``policy.options.arguments.api_key``.
    """

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)

    format: Literal["stepwell-definition/1"]
    policy: PolicyEntry
    scene: SceneEntry
    perturbation: PerturbationEntry
    max_steps: StepBudget
    timeouts: TimeoutEntry
    directory: str
    hidden: list[str] = []


def definition_text(
    policy: PolicyEntry,
    scene: SceneEntry,
    perturbation: PerturbationEntry,
    max_steps: int,
    timeouts: TimeoutEntry,
) -> str:
    """The `Definition` of a cell as canonical JSON; the check of a spec bounds its size."""
    hidden: list[str] = []
    parts = {
        "policy": policy.model_dump(exclude={"scenes"}),
        "scene": scene.model_dump(),
        "perturbation": perturbation.model_dump(exclude={"scenes"}),
    }
    body: dict[str, Any] = {name: _shown(part, name, hidden) for name, part in parts.items()}
    body |= {"format": FORMAT, "max_steps": max_steps, "timeouts": timeouts.model_dump(), "directory": str(Path.cwd())}
    return canonical(body | {"hidden": hidden})


def read_definition(text: str) -> Definition:
    """What `definition_text` wrote.

    Raises:
        SpecError: it is none, or of another version of this format.
    """
    try:
        return Definition.model_validate(json.loads(text))
    except ValidationError as error:
        where = ".".join(map(str, error.errors()[0]["loc"]))
        raise SpecError(f"no definition of this version: {where}: {error.errors()[0]['msg']}") from None
    except (ValueError, RecursionError) as error:
        raise SpecError(f"no definition: {error}") from None


def _shown(value: Any, path: str, hidden: list[str]) -> Any:
    """The value as the log may have it; what looks like a secret is hidden, and where stands in ``hidden``."""
    if isinstance(value, dict):
        return {key: _shown_at(key, item, f"{path}.{key}", hidden) for key, item in value.items()}
    if isinstance(value, list):
        return [_shown(item, f"{path}[{i}]", hidden) for i, item in enumerate(value)]
    if isinstance(value, str) and redact_text(value) != value:
        hidden.append(path)
        return HIDDEN
    return value


def _shown_at(key: Any, value: Any, path: str, hidden: list[str]) -> Any:
    if isinstance(key, str) and is_secret_key(key) and isinstance(value, str) and value:
        hidden.append(path)
        return HIDDEN
    return _shown(value, path, hidden)


# --- what the log has ---------------------------------------------------------------------------------------------


def not_planned(log: MessageLog, codec: Codec, run_id: str, planned: Collection[str]) -> set[str]:
    """The ids of the episodes that the log has of this run beside those ``planned``.

    An episode's id follows from its definition. So these are of another definition of a policy, scene or perturbation,
    or of cells that the spec no longer has.

    Raises:
        LogError: the log cannot be read.
    """
    known = frozenset(episode_id.encode() for episode_id in planned)
    requests = read_episode_requests(log, codec, lambda key: key not in known)
    return {event.episode_id for event in requests if event.run_id == run_id}


def read_episode_requests(
    log: MessageLog, codec: Codec, keep: Callable[[bytes | None], bool] = lambda _: True
) -> Iterator[EpisodeRequested]:
    """Every readable first request of an episode whose key ``keep`` takes, partition after partition.

    Raises:
        LogError: the log cannot be read.
    """
    for batch in read_batches(log, EPISODE_EVENTS):
        for key, value, headers in zip(batch.keys, batch.values, batch.headers, strict=True):
            if REQUEST_TYPE not in headers or not keep(key):
                continue
            try:
                event = codec.decode_event(value, headers)
            except EventError:
                continue
            if isinstance(event, EpisodeRequested) and event.episode_id.encode() == key:
                yield event
