"""``stepwell retrain mute``: times and names that cannot be meant are refused before anything is written."""

import pytest
from typer.testing import CliRunner

from stepwell.adapters.logs.reading import read_all
from stepwell.cli import build_app
from stepwell.cli.times import SPAN_MAX_US, moment_us, span_us
from stepwell.engine.ports import MessageLog
from stepwell.events.codec import Codec
from stepwell.events.topics import POLICY_EVENTS
from stepwell.exceptions import ConfigurationError


def mute(*arguments: str) -> str:
    result = CliRunner().invoke(build_app(), ["retrain", "mute", "p", "--reason", "x", *arguments])
    if isinstance(result.exception, ConfigurationError):
        raise result.exception
    assert result.exit_code == 0, (result.output, result.exception)
    return result.output


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (["--rule", "Not A Rule"], "--rule 'Not A Rule': no name of a rule; expected lower-case letters"),
        (["--rule", ""], "--rule '': no name of a rule"),
        (["--rule", "a\n"], r"no name of a rule"),
        (["--rule", "a" * 61], "60 characters at most"),
        (["--for", "0s"], "--for '0s': such a mute is over already; nothing was written"),
        (["--for", "0.0000001w"], "--for '0.0000001w': expected a number"),
        (["--for", "999999999w"], "--for '999999999w': that is more than ten years"),
        (["--until", "9999-12-31"], "--until '9999-12-31' is over a thousand years ahead; without --for and"),
        (["--until", "9999-12-31T23:59:59-23:59"], "is over a thousand years ahead"),
        (["--until", "0001-01-01T00:00+23:59"], "expected a time after 1970"),
        (["--until", "99999-01-01"], "expected a date or a time in ISO 8601"),
    ],
)
def test_what_cannot_be_meant_is_refused(log: MessageLog, arguments: list[str], why: str) -> None:
    with pytest.raises(ConfigurationError, match=why):
        mute(*arguments)
    assert list(read_all(log, Codec(), POLICY_EVENTS)) == []


def test_a_rule_that_is_not_in_force_is_noted_and_muted(log: MessageLog) -> None:
    told = mute("--rule", "later_on")
    assert "no rule later_on is in force" in told
    assert "p  rule later_on muted until unmuted" in told
    assert len(list(read_all(log, Codec(), POLICY_EVENTS))) == 1


def test_the_longest_span_is_still_one() -> None:
    assert span_us("3660d", "--for") == SPAN_MAX_US
    with pytest.raises(ConfigurationError, match="more than ten years"):
        span_us("3661d", "--for")
    assert span_us("0s", "--adopt-after") == 0
    assert moment_us("1970-01-01", "--since") == 0
