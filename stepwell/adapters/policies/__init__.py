"""Policies: which to run (`spec`) and how it is driven (`client`).

The other modules run inside the policy's own process; see `session` for the protocol.
"""

from stepwell.adapters.policies.client import Chunk, PolicyDescription, PolicyProcess
from stepwell.adapters.policies.spec import (
    DefectSpec,
    PolicySpec,
    needs_of,
    problems_between,
    validate_policy,
)

__all__ = [
    "Chunk",
    "DefectSpec",
    "PolicyDescription",
    "PolicyProcess",
    "PolicySpec",
    "needs_of",
    "problems_between",
    "validate_policy",
]
