"""A real schema registry on 127.0.0.1: Apicurio, from Maven, which speaks Confluent's API.

``python -m stepwell.adapters.parts.registry install`` brings it (142 MB). It keeps its schemas and ids in a file of its
own folder, over a kill as well: the ids stand in the records of a log.
"""

import argparse
import subprocess
import sys
import tarfile
import tempfile
import time
import urllib.error
import urllib.request
from pathlib import Path

from stepwell.adapters.parts import OwnProcess, ServerPart, exclusive, free_port, parts_directory, require_command
from stepwell.exceptions import MissingPartError, StepwellError

__all__ = ["RegistryPart", "install"]

VERSION = "2.6.13.Final"
"""The last line that runs on Java 17."""
READY_TIMEOUT_S = 90.0
_ARTIFACT = f"io.apicurio:apicurio-registry-app:{VERSION}:tar.gz:all"
_JAR = f"apicurio-registry-app-{VERSION}-runner.jar"
_JVM = ("-Xmx256m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC")


def install(parts_dir: Path | None = None) -> Path:
    """Bring the registry; does nothing where it is there already. Safe when several processes call it at once.

    Returns:
        the installation's folder, with the jar that runs.

    Raises:
        MissingPartError: java or mvn is missing, or Maven could not bring the archive.
    """
    home = (parts_dir or parts_directory()) / f"apicurio-{VERSION}"
    require_command("java", "default-jre-headless")
    home.mkdir(parents=True, exist_ok=True)
    with exclusive(home / "lock"):
        if not (home / "app" / _JAR).is_file():
            _bring(home)
    return home


def _bring(home: Path) -> None:
    mvn = require_command("mvn", "maven")
    with tempfile.TemporaryDirectory(dir=home, prefix="new-") as scratch:
        command = [mvn, "-q", "-B", "dependency:copy", f"-Dartifact={_ARTIFACT}", f"-DoutputDirectory={scratch}"]
        # Not in the working directory: Maven would take a pom.xml there for its own.
        done = subprocess.run(
            command, cwd=scratch, capture_output=True, text=True, stdin=subprocess.DEVNULL, check=False
        )
        archives = list(Path(scratch).glob("*.tar.gz"))
        if done.returncode or len(archives) != 1:
            said = (done.stdout + done.stderr).strip()[-2000:]
            raise MissingPartError(
                f"Maven could not bring the schema registry {VERSION} (exit code {done.returncode}). It needs a Maven "
                f"repository: the network, or a mirror named in ~/.m2/settings.xml. Maven said:\n{said}"
            )
        unpacked = Path(scratch, "app")
        with tarfile.open(archives[0]) as archive:
            archive.extractall(unpacked, filter="data")
        unpacked.rename(home / "app")  # whole or not at all


class RegistryPart(ServerPart):
    """One registry. A context manager; also ``start``, ``stop``, ``kill9``. It ends with the process that started it.

    Args:
        directory: where schemas and log lie; kept on `stop`. None: a temporary folder, removed on `stop`.
        port: its port on 127.0.0.1; None takes a free one. A restart keeps it.
        home: the installation, as `install` returns it; None installs where needed.
    """

    def __init__(
        self, directory: Path | str | None = None, port: int | None = None, *, home: Path | None = None
    ) -> None:
        super().__init__(directory, "registry")
        self.port = port or free_port()
        self._home = home

    @property
    def url(self) -> str:
        """Where Confluent's API is."""
        return f"http://127.0.0.1:{self.port}/apis/ccompat/v7"

    def command(self) -> list[str]:
        """The command that serves this folder; installs where needed.

        Raises:
            MissingPartError: as `install`.
        """
        home = self._home or install()
        self.directory.mkdir(parents=True, exist_ok=True)
        # H2 writes half a second late unless told otherwise, and a kill would take back ids that records bear already.
        data = f"jdbc:h2:file:{self.directory / 'registry'};WRITE_DELAY=0"
        return [
            require_command("java", "default-jre-headless"), *_JVM, f"-Dquarkus.datasource.jdbc.url={data}",
            "-Dquarkus.http.host=127.0.0.1", f"-Dquarkus.http.port={self.port}",
            "-jar", str(home / "app" / _JAR),
        ]  # fmt: skip

    def answers(self) -> bool:
        """Whether it answers now."""
        try:
            with urllib.request.urlopen(f"{self.url}/subjects", timeout=2) as answer:  # noqa: S310 (http, on 127.0.0.1)
                return bool(answer.status == 200)
        except (urllib.error.URLError, OSError):
            return False

    def start(self) -> str:
        """Start it (a restart keeps data and port) and wait until it answers; the URL. Does nothing when it runs.

        Raises:
            MissingPartError: as `install`.
            StepwellError: it did not come up; with the last lines of its log.
        """
        if self._process is None or not self._process.running:
            self._process = OwnProcess(self.command(), self.log, cwd=self.directory)
            self._process.wait_ready(self.answers, READY_TIMEOUT_S, "The schema registry")
        return self.url


def main(arguments: list[str] | None = None) -> int:
    """``install`` brings the registry."""
    parser = argparse.ArgumentParser(prog="python -m stepwell.adapters.parts.registry", description=main.__doc__)
    parser.add_argument("command", choices=["install"])
    parser.parse_args(arguments)
    started = time.monotonic()
    try:
        home = install()
    except StepwellError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    print(f"The schema registry {VERSION} is ready in {home} ({time.monotonic() - started:.0f} s).")
    return 0


if __name__ == "__main__":
    sys.exit(main())
