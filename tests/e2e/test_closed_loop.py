"""The closed loop, small: one policy, evaluated only where it has seen no demonstrations."""

import json
import os
import subprocess
import sys
from pathlib import Path

from stepwell.adapters.logs import open_log
from stepwell.adapters.runs.definitions import read_episode_requests
from stepwell.adapters.runs.regression import FRESH_FROM
from stepwell.events.codec import Codec

ROOT = Path(__file__).parents[2]
DEADLINE_S = 300.0


def test_a_failure_becomes_a_request_a_checkpoint_and_a_tested_mend(tmp_path: Path) -> None:
    home = tmp_path / "home"
    environment = {name: value for name, value in os.environ.items() if not name.startswith("STEPWELL_")}
    if parts := os.environ.get("STEPWELL_PARTS"):
        environment["STEPWELL_PARTS"] = parts
    loop = [sys.executable, "examples/closed_loop/run.py", "--home", str(home), "--repeats", "1"]
    done = subprocess.run(
        [*loop, "--seeds", "6", "--scenes", "outer-right"],
        env=environment,
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    (repeat,) = json.loads((home / "figures.json").read_text())["repeats"]
    first = repeat["requests"][0]
    assert (first["checkpoint"], first["state"], first["weights"]) == ("pusher-1-a", "done", {"outer-right": 1.0})

    (regression,) = repeat["regressions"]
    fresh = regression["total"]["fresh"]
    assert regression["demonstrations_added"] == "outer-right 20"
    assert (regression["unfinished"], fresh["seeds"], fresh["pairs"]) == (0, 10, 10)
    assert (regression["recurrence"]["scored"], regression["others"]) == (10, [])  # no other scene was evaluated
    # Whether so small a training helped is for the figures to say: ten seeds would decide it by chance.
    assert fresh["after"]["succeeded"] - fresh["before"]["succeeded"] == fresh["gained"] - fresh["lost"]
    assert f"{fresh['before']['succeeded']} of 10" in done.stdout
    assert f"{fresh['after']['succeeded']} of 10" in done.stdout
    assert f"{regression['checkpoint']} after" in done.stdout

    about = json.loads((home / "checkpoints" / f"{regression['checkpoint']}.json").read_text())
    trained = {each["seed"] for each in about["new_demonstrations"]}
    log = open_log(f"local:{home / 'log'}")
    requests = list(read_episode_requests(log, Codec()))
    log.close()
    evaluated = {event.seed for event in requests if event.run_id == "first"}
    judged = {event.seed for event in requests if event.seed >= FRESH_FROM}
    assert trained & evaluated  # the hard negatives were mined
    assert len(judged) == 10
    assert not judged & trained


def test_a_folder_with_other_things_in_it_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "final.tex").write_text("years")
    refused = python("examples/closed_loop/run.py", "--home", str(tmp_path))
    assert refused.returncode == 1
    assert f"{tmp_path} is not empty and was not made by this" in refused.stdout
    assert [(path.name, path.is_dir()) for path in tmp_path.rglob("*")] == [("thesis", True), ("final.tex", False)]


def test_a_folder_of_its_own_is_emptied_and_stays_its_own(tmp_path: Path) -> None:
    kept, own = tmp_path / "kept", tmp_path / "own"
    kept.write_text("of someone else")
    found = "import sys, pathlib; sys.path.insert(0, 'examples/closed_loop')"
    make = f"{found}; from run import make_home; make_home(pathlib.Path(sys.argv[1]))"
    assert python("-c", make, str(own)).returncode == 0
    (mark,) = own.iterdir()
    (own / "log").mkdir()
    (own / "log" / "log.db").write_text("old")
    (own / "link").symlink_to(kept)
    assert python("-c", make, str(own)).returncode == 0
    assert list(own.iterdir()) == [mark]
    assert kept.exists()
    assert python("-c", make, str(kept)).stdout == f"--home {kept} is no folder; name a new one\n"


def python(*arguments: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )
