"""``stepwell work --listen``: a port for each worker."""

import pytest

from stepwell.cli.workers import _consecutive
from stepwell.exceptions import ConfigurationError


@pytest.mark.parametrize(
    ("listen", "first", "last"),
    [
        ("9464", "127.0.0.1:9464", "127.0.0.1:9466"),
        ("0.0.0.0:9464", "0.0.0.0:9464", "0.0.0.0:9466"),
        ("[::1]:65533", "[::1]:65533", "[::1]:65535"),
        (":0", "127.0.0.1:0", "127.0.0.1:0"),
    ],
)
def test_ports_follow_one_another(listen: str, first: str, last: str) -> None:
    options = _consecutive(listen, 3)
    assert len(options) == 3
    assert (options[0], options[-1]) == (["--listen", first], ["--listen", last])


def test_without_an_address_nobody_listens() -> None:
    assert _consecutive(None, 2) == [[], []]


def test_ports_that_do_not_exist_are_refused() -> None:
    with pytest.raises(ConfigurationError, match="3 workers need 3 ports, the last is 65535"):
        _consecutive("65534", 3)
