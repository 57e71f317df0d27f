"""The team's stack as processes of one machine: up, down, status.

Everything lies in one folder, ``HOME/dev``, and listens on 127.0.0.1 only. ``up`` starts what does not run, whatever
ended it before; ``down`` ends all of it, also what nobody remembers. The data stay unless they are wiped.
"""

import contextlib
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from stepwell.adapters.dev import processes
from stepwell.adapters.dev.services import (
    Service,
    alert_rules,
    client_environment,
    foreign_variables,
    servers,
    workers,
    workers_environment,
)
from stepwell.adapters.dev.state import DATABASES, State, held, load, save
from stepwell.adapters.parts import listens, tail
from stepwell.adapters.parts.embedded_postgres import EmbeddedPostgres
from stepwell.exceptions import ConfigurationError, NotFoundError, StepwellError

__all__ = ["Shown", "Stack", "workers_on"]

READY_TIMEOUT_S = 120.0
_ONE_SHOT_TIMEOUT_S = 300.0
_STRAY_GRACE_S = 5.0


def workers_on(home: Path, log_url: str) -> int | None:
    """The process of the workers that the set of this home runs on this log; None where it runs none.

    Raises:
        ConfigurationError: the set's state is damaged.
    """
    state = load(home / "dev")
    if state is None or client_environment(home / "dev", state)["STEPWELL_LOG"] != log_url:
        return None
    process = state.processes.get("workers")
    return process.pid if process is not None and processes.lives(process) else None


@dataclass(frozen=True, slots=True)
class Shown:
    """How one service stands.

    Attributes:
        name: the service.
        state: ``ready``, ``starting`` (it runs, and does not answer yet), ``ended`` or ``away``.
        pid: its process; None where it runs none.
        address: where it is reached.
        log: where what it says goes.
    """

    name: str
    state: str
    pid: int | None
    address: str
    log: Path


class Stack:
    """The set in the folder ``home/dev``.

    Args:
        home: the user's home of Stepwell.
        say: told what happens, a line each.
    """

    def __init__(self, home: Path, say: Callable[[str], None] = lambda _: None) -> None:
        processes.require_proc()
        self.directory = home / "dev"
        self._say = say

    def up(
        self,
        *,
        database: str | None = None,
        registry: bool | None = None,
        prometheus: bool | None = None,
        engines: int | None = None,
    ) -> None:
        """Start what does not run, and wait until all of it is ready. What is None stays as it was.

        Raises:
            ConfigurationError: the set was made with another database.
            MissingPartError: a part is not installed, and cannot be brought.
            StepwellError: another command is at work on the set, or something did not come up: with the end of its log.
        """
        with held(self.directory):
            state = self._wanted(database, registry, prometheus, engines)
            self._end_strays(state)
            self._forget_unwanted(state)
            environment = workers_environment(self.directory, state)
            for service in servers(self.directory, state):
                self._ensure(state, service, environment)
            if state.database == "embedded":
                self._say("embedded PostgreSQL")
                EmbeddedPostgres(self.directory / "database").start(keep=True)
            self._prepare(state, environment)
            for service in workers(self.directory, state):
                self._ensure(state, service, environment)
            save(self.directory, state)

    def down(self, *, wipe: bool = False) -> int:
        """End every process of the set; how many there were. The workers first, then what they need.

        Args:
            wipe: remove the data, too.

        Raises:
            StepwellError: another command is at work on the set.
        """
        if not self.directory.exists():
            return 0
        with held(self.directory):
            state = self._known(damaged_is_none=wipe)
            ended = 0
            if state is not None:
                for service in reversed(self._services(state)):
                    ended += self._end(state, service)
            strays = processes.members(self.directory)
            for stray in strays:
                self._say(f"process {stray.pid}, which nobody remembers, is ended")
            processes.end_all(strays, _STRAY_GRACE_S)
            ended += len(strays)
            database = EmbeddedPostgres(self.directory / "database")
            if database.running:
                self._say("embedded PostgreSQL is ended")
                database.stop(force=True)
                ended += 1
            if wipe:
                self._wipe()
            return ended

    def status(self) -> list[Shown]:
        """How every service stands.

        Raises:
            NotFoundError: no set was made here.
        """
        state = self._state()
        found = [self._shown(state, service) for service in self._services(state)]
        if state.database == "embedded":
            database = EmbeddedPostgres(self.directory / "database")
            condition = "ready" if database.running else "ended"
            found.insert(1, Shown("database", condition, None, f"embedded:{database.directory}", database.log))
        return found

    def environment(self) -> dict[str, str | None]:
        """What a shell has to export to work with the set; None for what it must not have set.

        Raises:
            NotFoundError: no set was made here.
        """
        wanted = client_environment(self.directory, self._state())
        return {**wanted, **dict.fromkeys(foreign_variables(wanted))}

    # --- what is wanted, and what is known ----------------------------------------------------------------------------

    def _wanted(
        self, database: str | None, registry: bool | None, prometheus: bool | None, engines: int | None
    ) -> State:
        state = self._known()
        if state is None:
            state = State(prometheus=shutil.which("prometheus") is not None)
            if database is not None:
                state.database = database
            if prometheus is None and not state.prometheus:
                self._say("Prometheus is not installed, and left out; as root: apt-get install prometheus")
        elif database is not None and database != state.database:
            kind = state.database if state.database in DATABASES else "a server of your own"
            raise ConfigurationError(
                f"the set in {self.directory} was made with another database ({kind}). End it and begin anew with: "
                "stepwell dev down --wipe"
            )
        state.registry = state.registry if registry is None else registry
        state.prometheus = state.prometheus if prometheus is None else prometheus
        if state.prometheus and not alert_rules():
            self._say("Prometheus has no alert rules: they come with the repository (compose/prometheus/rules) only")
        if engines is not None and engines != state.engines:
            state.engines = engines
            state.ports.pop("workers", None)
            if "workers" in state.processes:
                processes.end(state.processes.pop("workers"), 60.0)
        return state

    def _known(self, *, damaged_is_none: bool = False) -> State | None:
        try:
            return load(self.directory)
        except ConfigurationError:
            if damaged_is_none:
                return None
            raise

    def _state(self) -> State:
        state = self._known()
        if state is None:
            raise NotFoundError(f"there is no set in {self.directory}. Start one with: stepwell dev up")
        return state

    def _services(self, state: State) -> list[Service]:
        """Every service that the set has now, in the order of its start."""
        return [*servers(self.directory, state), *workers(self.directory, state)]

    # --- starting -----------------------------------------------------------------------------------------------------

    def _ensure(self, state: State, service: Service, environment: dict[str, str]) -> None:
        """Have a service run and answer."""
        process = state.processes.get(service.name)
        if process is None or not processes.lives(process):
            if _taken(state, service):
                raise StepwellError(
                    f"{service.name}: its port {state.ports[service.name]} was taken by another program meanwhile. End "
                    "that program, or begin anew with: stepwell dev down --wipe"
                )
            self._say(f"{service.name} starts: {service.address}")
            service.log.parent.mkdir(parents=True, exist_ok=True)
            process = processes.launch(
                service.command(),
                log=service.log,
                cwd=self.directory,
                env=environment,
                mark=self.directory,
            )
            state.processes[service.name] = process
            save(self.directory, state)
        else:
            self._say(f"{service.name} runs: {service.address}")
        deadline = time.monotonic() + READY_TIMEOUT_S
        while not service.answers():
            if not processes.lives(process):
                raise StepwellError(
                    f"{service.name} ended while starting. Last lines of {service.log}:\n{tail(service.log)}"
                )
            if time.monotonic() > deadline:
                raise StepwellError(
                    f"{service.name} runs (process {process.pid}), and was not ready within {READY_TIMEOUT_S:.0f} s. "
                    f"Last lines of {service.log}:\n{tail(service.log)}"
                )
            time.sleep(0.1)

    def _prepare(self, state: State, environment: dict[str, str]) -> None:
        """The steps before the workers: topics, schemas in the registry, tables. Each can be repeated."""
        steps = [("topics", "create"), *([("schemas", "register")] if state.registry else []), ("db", "migrate")]
        for step in steps:
            self._say(f"stepwell {' '.join(step)}")
            done = subprocess.run(
                [sys.executable, "-m", "stepwell", *step], cwd=self.directory, env=environment, capture_output=True,
                text=True, stdin=subprocess.DEVNULL, timeout=_ONE_SHOT_TIMEOUT_S, check=False,
            )  # fmt: skip
            if done.returncode:
                said = (done.stdout + done.stderr).strip()[-2000:]
                raise StepwellError(f"stepwell {' '.join(step)} failed with exit code {done.returncode}:\n{said}")

    def _end_strays(self, state: State) -> None:
        """End what a crash left behind: processes of the set that are neither remembered nor a child of such a one."""
        remembered = {process.pid for process in state.processes.values() if processes.lives(process)}
        strays = [each for each in processes.members(self.directory) if not _belongs(each.pid, remembered)]
        for stray in strays:
            self._say(f"process {stray.pid}, left behind by a crash, is ended")
        processes.end_all(strays, _STRAY_GRACE_S)

    def _forget_unwanted(self, state: State) -> None:
        """End what the set has no longer, such as a registry that was left out this time."""
        wanted = {service.name for service in self._services(state)}
        for name in [name for name in state.processes if name not in wanted]:
            self._say(f"{name} is ended")
            processes.end(state.processes.pop(name), 30.0)
        save(self.directory, state)

    # --- ending and looking -------------------------------------------------------------------------------------------

    def _end(self, state: State, service: Service) -> int:
        process = state.processes.pop(service.name, None)
        if process is None or not processes.lives(process):
            return 0
        self._say(f"{service.name} is ended")
        if not processes.end(process, service.grace_s):
            self._say(f"{service.name} did not end within {service.grace_s:.0f} s, and was killed")
        save(self.directory, state)
        return 1

    def _wipe(self) -> None:
        for entry in self.directory.iterdir():
            # The lock is held: whoever waits for it must find the same file.
            if entry.name != "lock":
                with contextlib.suppress(FileNotFoundError):
                    shutil.rmtree(entry) if entry.is_dir() else entry.unlink()
        self._say(f"the data in {self.directory} are removed")

    def _shown(self, state: State, service: Service) -> Shown:
        process = state.processes.get(service.name)
        if process is None or not processes.lives(process):
            return Shown(service.name, "ended" if process else "away", None, service.address, service.log)
        return Shown(
            service.name, "ready" if service.answers() else "starting", process.pid, service.address, service.log
        )


def _taken(state: State, service: Service) -> bool:
    port = state.ports.get(service.name)
    return port is not None and listens(port)


def _belongs(pid: int, remembered: set[int]) -> bool:
    """Whether a process is one of these, or descends from one."""
    return any(each in remembered for each in _line_of(pid))


def _line_of(pid: int) -> Iterator[int]:
    while pid > 1:
        yield pid
        try:
            pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
        except (OSError, ValueError):
            return
