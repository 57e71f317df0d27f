"""Prometheus of ``stepwell dev up`` has the repository's alert rules; where there are none it is said."""

from pathlib import Path

import pytest

from stepwell.adapters.dev import services
from stepwell.adapters.dev.services import alert_rules
from stepwell.adapters.dev.stack import Stack


def wanted(directory: Path, *, prometheus: bool) -> list[str]:
    """What is said when a set is made."""
    said: list[str] = []
    Stack(directory, said.append)._wanted(None, None, prometheus, None)
    return said


def test_a_checkout_has_the_rules_and_not_their_tests(tmp_path: Path) -> None:
    assert [path.name for path in alert_rules()] == ["stepwell.yml"]
    assert wanted(tmp_path, prometheus=True) == []


def test_an_installed_package_says_that_it_has_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    site = tmp_path / "site-packages" / "stepwell" / "adapters" / "dev"
    monkeypatch.setattr(services, "__file__", str(site / "services.py"))
    (said,) = wanted(tmp_path, prometheus=True)
    assert said.startswith("Prometheus has no alert rules")
    assert wanted(tmp_path, prometheus=False) == []
