"""The demo: simulated robots are evaluated, failures noticed, a training service told, a failed episode replayed.

    python examples/demo/run.py            on the embedded default: local log, embedded PostgreSQL
    python examples/demo/run.py --kafka    the same over real Apache Kafka and TimescaleDB (stepwell dev up)

Everything it does is done by the ``stepwell`` command, as you would; each command is shown before it runs.
"""

import argparse
import contextlib
import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
SETTLE_TIMEOUT_S = 120.0
RUN_ID = "demo"


def main() -> int:
    """Run the demo; the exit code of the first step that fails, else 0."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--kafka", action="store_true", help="over real Apache Kafka and TimescaleDB")
    kafka = parser.parse_args().kafka
    home = ROOT / ".stepwell" / ("demo-kafka" if kafka else "demo")
    os.environ["STEPWELL_HOME"] = str(home)
    os.chdir(ROOT)
    if (home / "dev").exists():  # a demo that was killed may have left its servers
        stepwell("dev", "down", "--wipe")
    shutil.rmtree(home, ignore_errors=True)
    home.mkdir(parents=True)
    began = time.monotonic()
    with contextlib.ExitStack() as stack:
        try:
            stack.enter_context(everything_running() if kafka else workers_running(home))
            tell_the_story(home)
        except subprocess.CalledProcessError as error:
            logs = home / "dev" / "workers.log" if kafka else home / "work.log"
            print(f"\nthe demo stopped: {error}; the workers' log is {logs}", file=sys.stderr)
            return 1
        say(f"done in {time.monotonic() - began:.0f} s. Try next:")
        failed = failed_episode()
        print("  . .venv/bin/activate")
        print(f"  export STEPWELL_HOME={shlex.quote(str(home))}")
        if kafka:  # its servers end with the demo; their data stay
            print('  stepwell dev up && eval "$(stepwell dev env)"')
        for command in (f"show {failed}", "episodes --outcome failure", "status"):
            print(f"  stepwell {command}")
    return 0


@contextlib.contextmanager
def workers_running(home: Path) -> Iterator[None]:
    """The embedded default: the workers on a local log and an embedded PostgreSQL, which need no service."""
    say("The database's tables are made.")
    stepwell("db", "migrate")
    say("Workers start: an engine folds the log, a projector fills the tables, a detector looks for patterns.")
    with background(home / "work.log", "work"):
        yield


@contextlib.contextmanager
def everything_running() -> Iterator[None]:
    """A team's stack as processes of this machine: Kafka, TimescaleDB, the same workers; ended with the demo."""
    say("A team's stack starts as processes: Kafka, TimescaleDB, the workers, a receiver of telemetry.")
    try:
        stepwell("dev", "up")
        for line in output_of("dev", "env").splitlines():
            name, _, value = line.removeprefix("export ").partition("=")
            os.environ[name] = shlex.split(value)[0]
        yield
    finally:
        say("The stack ends; its data stay.")
        stepwell("dev", "down")


def tell_the_story(home: Path) -> None:
    """What happens once the workers run."""
    inbox = home / "inbox"
    say("A training service subscribes to retrain requests.")
    handler = f"{sys.executable} {HERE / 'take_request.py'} {inbox}"
    with background(home / "listen.log", "retrain", "listen", "--answer", "accepted", "--run", handler):
        say("35 episodes run in two real MuJoCo simulators; simulator and policy are processes of their own.")
        stepwell("run", str((HERE / "demo.yaml").relative_to(ROOT)), "--run-id", RUN_ID)
        settle(inbox)
    say("The same, asked of the database in SQL:")
    query(OUTCOMES)
    say("Rule: the same failure type in five episodes in a row for one policy. It fired; who was asked to retrain?")
    stepwell("retrain", "list")
    say("What the training service received (its inbox):")
    for path in sorted(inbox.glob("*.json")):
        print(describe(json.loads(path.read_text())))
    say("One failed episode, folded again from the log alone, step by step (the last ones):")
    stepwell("replay", failed_episode(), "--last", "12")
    say("And all of it: every episode folded again, every row of every table made again, compared.")
    stepwell("verify", "--all")


OUTCOMES = """\
SELECT policy, scene, outcome, coalesce(failure_type, '') AS failure_type, coalesce(fault, '') AS fault,
       sum(episodes) AS episodes
FROM stepwell.outcome_summary GROUP BY 1, 2, 3, 4, 5 ORDER BY 1, 2, 3"""


def stepwell(*arguments: str) -> None:
    """Show a command and run it."""
    print(f"$ stepwell {' '.join(arguments)}", flush=True)
    subprocess.run([sys.executable, "-m", "stepwell", *arguments], check=True)


def output_of(*arguments: str) -> str:
    """Run a command and give what it prints."""
    command = [sys.executable, "-m", "stepwell", *arguments]
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout


@contextlib.contextmanager
def background(log: Path, *arguments: str) -> Iterator[None]:
    """Run a command beside; ended by its own process id."""
    print(f"$ stepwell {' '.join(arguments)} &", flush=True)
    with log.open("w") as file:
        process = subprocess.Popen([sys.executable, "-m", "stepwell", *arguments], stdout=file, stderr=file)
    try:
        yield
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
        process.wait(timeout=60)


def settle(inbox: Path) -> None:
    """Wait until everything has been folded and projected, and the requests have reached the subscriber."""
    deadline = time.monotonic() + SETTLE_TIMEOUT_S
    while time.monotonic() < deadline:
        asked = output_of("retrain", "list", "--json").splitlines()
        lag = json.loads(output_of("status", "--json"))["lag"]
        behind = sum(entry["behind_events"] for entry in lag if entry["topic"] != "stepwell.telemetry")
        if behind == 0 and asked and len(list(inbox.glob("*.json"))) == len(asked):
            return
        time.sleep(1.0)
    raise SystemExit("the workers did not come to rest; see .stepwell/*/work.log")


def failed_episode() -> str:
    """The first episode in which the policy failed for want of a grip."""
    rows = map(json.loads, output_of("episodes", "--json", "--policy", "pick-no-grip").splitlines())
    return str(next(row["episode"] for row in rows if row["outcome"] == "failure"))


def query(sql: str) -> None:
    """Ask the database and print the answer as a table."""
    import psycopg

    from stepwell.cli.resources import opened_database
    from stepwell.cli.tables import console, plain_table

    print(sql, flush=True)
    with opened_database() as url, psycopg.connect(url) as connection:
        cursor = connection.execute(sql.encode())
        table = plain_table(*(column.name for column in cursor.description or ()), rows=cursor.fetchall())
    console().print(table)


def describe(request: dict) -> str:  # type: ignore[type-arg]
    """A retrain request in a few lines."""
    evidence = ", ".join(f"{entry['episode_id']} (seed {entry['seed']})" for entry in request["evidence"])
    weights = ", ".join(f"{w['scene']}/{w['perturbation']} {w['weight']:.2f}" for w in request["sampling_weights"])
    return (
        f"  {request['trigger_id']}: retrain {request['policy']} {request['policy_version']}, which failed by "
        f"{request['failure_type']}\n    evidence: {evidence}\n    proposed weights of new data: {weights}"
    )


def say(text: str) -> None:
    """A heading."""
    print(f"\n── {text}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
