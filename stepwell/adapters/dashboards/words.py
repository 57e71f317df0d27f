"""Words of the views that mean something good or bad, and so have a colour."""

from stepwell.adapters.dashboards.model import Level

OUTCOMES: dict[str, Level] = {"success": "good", "failure": "bad", "error": "warn"}
STATES: dict[str, Level] = {
    "current": "good", "caught up": "good", "running": "good", "behind": "warn", "waiting": "warn", "starting": "warn",
    "stalled": "bad", "silent": "bad", "failed": "bad",
}  # fmt: skip
"""Of the tables (`projection_freshness`), of positions (`pipeline_lag`) and of workers (`workers`)."""
