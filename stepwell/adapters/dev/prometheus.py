"""Prometheus' configuration: one definition for this machine's set and for the team's stack (compose/prometheus)."""

from collections.abc import Iterable
from typing import Any

import yaml

__all__ = ["configuration"]

_HEAD = """\
# What Prometheus scrapes: the /metrics of each worker (docs/workers.md). Alert rules: docs/runbook.md.
# Made by stepwell/adapters/dev/prometheus.py; a test holds this file to it.
"""


def configuration(targets: Iterable[str], rules: Iterable[str], *, every_s: int) -> str:
    """The file's text.

    Args:
        targets: ``host:port`` of each worker.
        rules: files with alert rules, as Prometheus is to find them (globs work).
        every_s: how often (s) to scrape, and to judge the rules.
    """
    content: dict[str, Any] = {
        "global": {
            "scrape_interval": f"{every_s}s",
            "scrape_timeout": f"{min(every_s, 10)}s",
            "evaluation_interval": f"{every_s}s",
        },
        "rule_files": list(rules),
        # The alert rules know the workers by this job's name.
        "scrape_configs": [{"job_name": "stepwell", "static_configs": [{"targets": list(targets)}]}],
    }
    return _HEAD + yaml.safe_dump(content, sort_keys=False, width=120)
