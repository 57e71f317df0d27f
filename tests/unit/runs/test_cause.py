"""What a failure says of an exception in a policy's code: where, in which line, and no more than a person reads."""

import traceback
from pathlib import Path

import pytest

from stepwell.adapters.policies.user import UserPolicy
from stepwell.adapters.processes import ProcessExitedError, ProcessRaisedError
from stepwell.adapters.runs.cause import LINE_CHARS_MAX, SENTENCE_CHARS_MAX, cause_of

POLICY = """\
import json

class Mine:
    def act(self, observation, step):
        return self.decide(step)

    def decide(self, step):
        if step == 0:
            raise ValueError("the gripper is\\nupside down")
        if step == 1:
            return json.loads("{")
        try:
            return {}["arm"]
        except KeyError as error:
            raise RuntimeError("no arm") from error
"""


def told(directory: Path, step: int, message: str | None = None) -> list[str]:
    """What is recorded when the policy raises at this step."""
    file = directory / "my_policy.py"
    file.write_text(POLICY)
    policy = UserPolicy(f"{file}:Mine")
    with pytest.raises((ValueError, RuntimeError)) as raised:
        policy.act({}, step)
    text = "".join(traceback.format_exception(raised.value))
    sentence = message or f"The policy raised {raised.type.__name__} in 'act': {raised.value}"
    failure = ProcessRaisedError(sentence, component="agent", output="loaded\nnoise", remote_traceback=text)
    return cause_of(failure).splitlines()


def test_an_exception_is_told_with_file_line_and_the_users_frames(tmp_path: Path) -> None:
    lines = told(tmp_path, 0)
    assert lines[:2] == [
        "The policy raised ValueError in 'act': the gripper is", "upside down at my_policy.py:9 in decide",
    ]  # fmt: skip
    text = "\n".join(lines)
    assert f'File "{tmp_path}/my_policy.py", line 5, in act\n    return self.decide(step)' in text
    assert f'File "{tmp_path}/my_policy.py", line 9, in decide\n    raise ValueError' in text
    assert "ValueError: the gripper is" in lines
    assert "user.py" not in text, "our own frames are of no use to them"
    assert lines[-3:] == ["last output:", "loaded", "noise"]


def test_an_exception_in_a_library_is_told_where_the_users_code_called_it(tmp_path: Path) -> None:
    first, *rest = told(tmp_path, 1)
    assert first.endswith(" at my_policy.py:11 in decide")
    assert not any("json" in line and "File" in line for line in rest)


def test_of_chained_exceptions_the_last_one_counts(tmp_path: Path) -> None:
    first, *rest = told(tmp_path, 2)
    assert first == "The policy raised RuntimeError in 'act': no arm at my_policy.py:15 in decide"
    assert not any("KeyError" in line for line in rest)


def test_the_length_is_bounded(tmp_path: Path) -> None:
    first, *rest = told(tmp_path, 0, "x" * 10_000)
    assert len(first) < SENTENCE_CHARS_MAX + 100
    assert all(len(line) <= LINE_CHARS_MAX for line in rest)
    assert len(rest) < 20


def test_what_raised_no_exception_is_told_with_its_last_output() -> None:
    failure = ProcessExitedError("The policy's process ended.", component="agent", output="a\nb\nc\nd\ne\nf")
    assert cause_of(failure) == "The policy's process ended.\nlast output:\nb\nc\nd\ne\nf"
