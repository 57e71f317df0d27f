"""The closed loop: a learned policy fails, the pattern is found, it is retrained as asked, and the mend is tested.

    python examples/closed_loop/run.py                    five repeats
    python examples/closed_loop/run.py --repeats 1        one

What it shows, and what not: docs/closed-loop.md. Evaluation, detection, requests and regression runs are done by the
``stepwell`` command and its workers; the learned policy and the training service are this folder's.
"""

import argparse
import contextlib
import dataclasses
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from cloning import demonstrate, save, save_demonstrations, train
from trainer import describe, first_checkpoint, first_demonstrations, scenes_of

from stepwell.adapters.logs import open_log
from stepwell.adapters.retrain_history import LedgerEntry, read_requests
from stepwell.adapters.runs.before_after import BeforeAfter, before_and_after
from stepwell.adapters.runs.recurrence import Recurrence
from stepwell.adapters.runs.spec import load_spec
from stepwell.adapters.workers.idle import IdleCheck
from stepwell.engine import restore
from stepwell.engine.detection import restore as detector
from stepwell.engine.ports import MessageLog
from stepwell.events.codec import Codec

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
RUN_ID = "first"
KNOWN_SCENES = ("outer-left", "inner-left")
"""Where the first checkpoint's demonstrations come from: this is the weakness."""
FIRST_DEMONSTRATIONS = 20
MARK = "made-by-closed-loop"
"""A file of this name says that a folder is this example's own."""
SETTLE_TIMEOUT_S = 900.0


@dataclass(frozen=True, slots=True)
class Options:
    """How large the loop is."""

    home: Path
    repeats: int
    seeds: int
    scenes: list[str] | None

    @property
    def policies(self) -> list[str]:
        """One for each repeat."""
        return [f"pusher-{repeat}" for repeat in range(1, self.repeats + 1)]


def main() -> int:
    """Run the loop; 0 if it closed, whatever came of it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument(
        "--home", type=Path, metavar="DIR", default=ROOT / ".stepwell" / "closed-loop", help="emptied, if made by this"
    )
    parser.add_argument("--repeats", type=int, default=5, choices=range(1, 21))
    parser.add_argument("--seeds", type=int, default=10, choices=range(1, 11), help="per scene, in the evaluation")
    parser.add_argument("--scenes", nargs="+", help="evaluated in these scenes only; in all where left out")
    options = Options(**vars(parser.parse_args()))
    options = dataclasses.replace(options, home=options.home.absolute())
    make_home(options.home)
    os.environ |= {
        "STEPWELL_HOME": str(options.home), "STEPWELL_LOG": f"local:{options.home / 'log'}", "OMP_NUM_THREADS": "1",
    }  # fmt: skip
    os.chdir(ROOT)
    began = time.monotonic()
    try:
        figures = tell_the_story(options)
    except subprocess.CalledProcessError as error:
        print(f"\nthe loop stopped: {error}; logs are in {options.home}", file=sys.stderr)
        return 1
    figures["seconds"] = round(time.monotonic() - began)
    path = options.home / "figures.json"
    path.write_text(json.dumps(figures, indent=2) + "\n")
    say(f"done in {figures['seconds']} s; the figures: {path}")
    return 0


def make_home(home: Path) -> None:
    """An empty folder of this example's own; only what this made is ever deleted.

    Raises:
        SystemExit: there is something else.
    """
    if home.is_symlink() or (home.exists() and not home.is_dir()):
        raise SystemExit(f"--home {home} is no folder; name a new one")
    if home.exists() and any(home.iterdir()):
        if not (home / MARK).is_file():
            raise SystemExit(f"--home {home} is not empty and was not made by this (no file {MARK}); name a new folder")
        for entry in home.iterdir():
            if entry.name == MARK:
                continue  # it stays, so that a deletion that was cut short can go on
            if entry.is_dir() and not entry.is_symlink():
                shutil.rmtree(entry)
            else:
                entry.unlink()
    home.mkdir(parents=True, exist_ok=True)
    (home / MARK).write_text("All in this folder is made, and deleted, by examples/closed_loop/run.py.\n")


def tell_the_story(options: Options) -> dict[str, Any]:
    """Every step; the figures."""
    home = options.home
    spec = write_spec(options)
    say(f"{options.repeats} policies learn to push a puck, from demonstrations with the puck on the left only.")
    for repeat, policy in enumerate(options.policies, 1):
        train_first(home, repeat, policy)
    rules = write_rules(options, spec)
    say("Workers start, a rule is put into force, and a training service subscribes.")
    with background(home / "work.log", *STEPWELL, "work", "--no-projector", "--no-telemetry"):
        stepwell("patterns", "activate", str(rules))
        trainer = [sys.executable, str(HERE / "trainer.py"), str(home)]
        follow = (*STEPWELL, "retrain", "regress", "--follow", "--parallel", "2")
        with (
            background(home / "trainer.log", *trainer) as training,
            background(home / "regress.log", *follow) as regressing,
        ):
            say("The policies are evaluated, with the puck everywhere.")
            stepwell("run", str(spec), "--run-id", RUN_ID)
            say("Meanwhile and after: requests are made and answered, and what failed is tried again.")
            with contextlib.closing(open_log(os.environ["STEPWELL_LOG"])) as log:
                settle(home, log, (training, regressing))
                entries = read_requests(log, Codec())
                results = {each.trigger_id: before_and_after(log, Codec(), each.trigger_id) for each in entries}
    say("The ledger:")
    stepwell("retrain", "list")
    show_last = next((entry for entry in entries if results[entry.trigger_id]), None)
    if show_last is not None:
        say("One of the requests:")
        stepwell("retrain", "show", show_last.trigger_id)
    return conclude(options, entries, results)


def write_spec(options: Options) -> Path:
    """The task spec of the evaluation: evaluate.yaml with a policy for each repeat."""
    spec = yaml.safe_load((HERE / "evaluate.yaml").read_text())
    (template,) = spec["policies"]
    weights = str(options.home / template["options"]["arguments"]["weights"])
    spec["policies"] = [
        template
        | {"name": name, "checkpoint": first_checkpoint(name)}
        | ({"scenes": options.scenes} if options.scenes else {})
        | {"options": template["options"] | {"needs": ["observation"], "arguments": {"weights": weights}}}
        for name in options.policies
    ]
    spec["seeds"] = spec["seeds"][: options.seeds]
    path = options.home / "evaluate.yaml"
    path.write_text(yaml.safe_dump(spec, sort_keys=False))
    return path


def write_rules(options: Options, spec: Path) -> Path:
    """rules.yaml; where less is evaluated, with a minimum that fits."""
    rules = yaml.safe_load((HERE / "rules.yaml").read_text())
    episodes = options.seeds * len(options.scenes or load_spec(spec).scenes)
    (rule,) = rules["verdicts"]
    rule["minimum"] = min(rule["minimum"], 9 * episodes // 10)
    path = options.home / "rules.yaml"
    path.write_text(yaml.safe_dump(rules, sort_keys=False))
    return path


def train_first(home: Path, repeat: int, policy: str) -> None:
    """A repeat's first checkpoint."""
    wanted = first_demonstrations(repeat, KNOWN_SCENES, FIRST_DEMONSTRATIONS)
    demonstrations = demonstrate(wanted, scenes_of(home / "evaluate.yaml"))
    save_demonstrations(home / "demonstrations" / f"{policy}.npz", demonstrations)
    about = {"trigger_id": None, "new_demonstrations": [each._asdict() for each in wanted]}
    checkpoint = first_checkpoint(policy)
    save(home / "checkpoints", checkpoint, train(demonstrations, repeat), about)
    print(f"{checkpoint}: trained on {describe(home, checkpoint)}", flush=True)


def settle(home: Path, log: MessageLog, beside: Sequence["subprocess.Popen[bytes]"]) -> None:
    """Wait until everything is folded, every request is answered and every regression has run."""
    groups = {restore.GROUP: restore.TOPICS, detector.GROUP: detector.TOPICS}
    codec = Codec()
    with contextlib.closing(IdleCheck(log, groups)) as idle:
        deadline = time.monotonic() + SETTLE_TIMEOUT_S
        told = ""
        while time.monotonic() < deadline:
            time.sleep(1.0)
            if any(process.poll() is not None for process in beside):
                raise SystemExit(f"one of the processes beside has ended; its log is in {home}")
            if "cannot be run: " in (home / "regress.log").read_text():
                raise SystemExit(f"a regression could not be run; {home / 'regress.log'} says why")
            entries = read_requests(log, codec)
            if told != (told := progress(home, entries)):
                print(told, flush=True)
            quiet = all(entry.closed for entry in entries) and idle()
            if quiet and all(is_tested(log, codec, entry) for entry in entries) and idle_again(idle):
                return
    raise SystemExit(f"the loop did not come to rest within {SETTLE_TIMEOUT_S:.0f} s; logs are in {home}")


def progress(home: Path, entries: list[LedgerEntry]) -> str:
    """How far it is, in words."""
    closed = sum(entry.closed for entry in entries)
    begun = (home / "regress.log").read_text().count("regression of ")
    return f"requests {len(entries)} · answered {closed} · regression runs begun {begun}"


def idle_again(idle: IdleCheck) -> bool:
    """Whether the workers still have nothing to do: the last regression's verdicts may have opened a request."""
    time.sleep(1.0)
    return idle()


def is_tested(log: MessageLog, codec: Codec, entry: LedgerEntry) -> bool:
    """Whether the regression that a closed request asks for has ended; some ask for none."""
    if entry.state != "done":
        return True
    results = before_and_after(log, codec, entry.trigger_id)
    return bool(results) and all(each.unfinished == 0 for each in results)


# --- what came of it ----------------------------------------------------------------------------------------------


def conclude(options: Options, entries: list[LedgerEntry], results: dict[str, list[BeforeAfter]]) -> dict[str, Any]:
    """Print a line for each repeat, and give all figures."""
    from stepwell.cli.tables import console, plain_table

    say("Each repeat, on fresh seeds (never evaluated or trained on before), before and after:")
    rows, repeats = [], []
    for policy in options.policies:
        own = [entry for entry in entries if entry.request.policy == policy]
        done = [result for entry in own for result in results[entry.trigger_id]]
        added = {result.checkpoint: describe(options.home, result.checkpoint) for result in done}
        repeats.append({
            "policy": policy,
            "requests": [
                {"trigger_id": entry.trigger_id, "checkpoint": entry.request.checkpoint, "state": entry.state,
                 "detail": entry.request.detail, "evidence": len(entry.request.evidence),
                 "weights": {w.scene: w.weight for w in entry.request.sampling_weights}}
                for entry in own
            ],
            "regressions": [result.as_plain() | {"demonstrations_added": added[result.checkpoint]} for result in done],
        })  # fmt: skip
        rows += [repeat_row(policy, result) for result in done]
        if not done:
            rows.append((policy, "no pattern was found" if not own else "not retrained", "", "", "", "", ""))
    columns = (
        "policy", "failed before: succeed now", "before (95 %)", "after (95 %)", "difference (95 %)", "McNemar p",
        "pattern again?",
    )  # fmt: skip
    console().print(plain_table(*columns, rows=rows, whole=("policy",)))
    return {"repeats": repeats}


def repeat_row(policy: str, result: BeforeAfter) -> tuple[str, ...]:
    """One line of the table of repeats."""
    from stepwell.adapters.runs.summary import describe_rate
    from stepwell.engine.intervals import wilson

    total, pairs = result.total, result.total.pairs
    low, high = pairs.interval() or (float("nan"), float("nan"))
    return (
        policy,
        f"{total.again_succeeded} of {total.again_scored}",
        describe_rate(pairs.before, pairs.n, wilson(pairs.before, pairs.n)),
        describe_rate(pairs.after, pairs.n, wilson(pairs.after, pairs.n)),
        f"{100 * (pairs.difference or 0.0):+.0f} points ({100 * low:+.0f} to {100 * high:+.0f})",
        f"{pairs.p_value():.2g}",
        again_in_words(result.recurrence),
    )


def again_in_words(found: Recurrence) -> str:
    """Whether the request's rule would fire again, on the new checkpoint's fresh episodes."""
    if found.finding == "too_few":
        return f"too few to tell ({found.episodes} of {found.minimum})"
    words = {"fires": "would fire", "silent": "would not fire", "unknown": "not known"}
    return f"{words[found.finding]} ({found.failures} of {found.episodes})"


# --- commands -----------------------------------------------------------------------------------------------------

STEPWELL = (sys.executable, "-m", "stepwell")


def stepwell(*arguments: str) -> None:
    """Show a command and run it."""
    print(f"$ stepwell {' '.join(arguments)}", flush=True)
    subprocess.run([*STEPWELL, *arguments], check=True)


@contextlib.contextmanager
def background(log: Path, *command: str) -> "Iterator[subprocess.Popen[bytes]]":
    """Run a command beside; ended by its own process id."""
    shown = command[len(STEPWELL) :] if command[: len(STEPWELL)] == STEPWELL else None
    print(f"$ {'stepwell ' + ' '.join(shown) if shown else 'python ' + ' '.join(command[1:])} &", flush=True)
    with log.open("w") as file:
        process = subprocess.Popen(command, stdout=file, stderr=file)
    try:
        yield process
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
        process.wait(timeout=60)


def say(text: str) -> None:
    """A heading."""
    print(f"\n── {text}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
