"""The log of one run of examples/demo, kept in the repository so that tests and docs/ops.md have its very answers.

To record it anew, as root (it gives the machine a name of its own for the time)::

    unshare --uts .venv/bin/python -m tests.support.demo_log

and then bring docs/ops.md up to it: ``.venv/bin/python -m tests.integration.test_ops_questions``.
"""

import getpass
import lzma
import os
import runpy
import shutil
import socket
import sqlite3
import subprocess
import sys
import tempfile
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
RECORDED = REPOSITORY / "tests" / "golden" / "demo-log.db.xz"
_OFFSETS = 1 << 40


def unpack(directory: Path, *, cut_at: float = 1.0) -> str:
    """The recorded log in a directory of yours; its URL.

    Args:
        directory: where it is to lie; made where it is not there.
        cut_at: how much of the run's time to keep (1: all): what was appended later is left out, as if the machine had
            stopped there.
    """
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "log.db").write_bytes(lzma.decompress(RECORDED.read_bytes()))
    connection = sqlite3.connect(directory / "log.db")
    with connection:
        # Whoever read it then is not here.
        for table in ("members", "ownership"):
            connection.execute(f"DELETE FROM {table}")
        if cut_at < 1:
            connection.execute("DELETE FROM group_positions")
            runs = "SELECT min(timestamp), max(timestamp) FROM records WHERE address / ? IN (SELECT slot FROM slots WHERE topic = 'stepwell.episode-events')"  # fmt: skip # noqa: E501
            first, last = connection.execute(runs, (_OFFSETS,)).fetchone()
            connection.execute("DELETE FROM records WHERE timestamp > ?", (first + (last - first) * cut_at,))
            newest = "(SELECT max(address) % ? + 1 FROM records WHERE address / ? = slot)"
            connection.execute(f"UPDATE slots SET high = coalesce({newest}, low)", (_OFFSETS, _OFFSETS))
    connection.close()
    return f"local:{directory}"


def record() -> None:
    """Run the demo in a directory and on a machine without a history, and keep its log."""
    subprocess.run(["hostname", "lab-1"], check=True)
    os.environ["LOGNAME"] = "ops"
    if (socket.gethostname(), getpass.getuser()) != ("lab-1", "ops"):
        raise SystemExit("the machine took no other name: run this under unshare --uts, as root")
    with tempfile.TemporaryDirectory() as work:
        place = Path(work, "lab")
        # The code too: tracebacks that stand in the log name files of that place.
        for folder in ("stepwell", "examples/demo"):
            shutil.copytree(REPOSITORY / folder, place / folder, ignore=shutil.ignore_patterns("__pycache__"))
        home = place / "home"
        home.mkdir()
        os.environ |= {
            "STEPWELL_HOME": str(home),
            "STEPWELL_PARTS": str(REPOSITORY / ".parts"),
            "PYTHONPATH": str(place),
        }
        os.chdir(place)
        demo = runpy.run_path(str(place / "examples" / "demo" / "run.py"))
        with demo["workers_running"](home):
            demo["tell_the_story"](home)
        log = home / "log" / "log.db"
        if str(REPOSITORY).encode() in log.read_bytes():
            raise SystemExit("the log names a folder of this machine")
        connection = sqlite3.connect(log)
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        connection.execute("VACUUM")
        connection.close()
        RECORDED.write_bytes(lzma.compress(log.read_bytes(), preset=9 | lzma.PRESET_EXTREME))
    print(f"{RECORDED.relative_to(REPOSITORY)}: {RECORDED.stat().st_size} bytes", file=sys.stderr)


if __name__ == "__main__":
    record()
