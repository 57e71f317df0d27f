"""All dashboards, in the order in which people read them."""

from stepwell.adapters.dashboards.episode import EPISODE_DASHBOARD
from stepwell.adapters.dashboards.failures import FAILURES
from stepwell.adapters.dashboards.fleet import FLEET
from stepwell.adapters.dashboards.machines import MACHINES
from stepwell.adapters.dashboards.model import Dashboard
from stepwell.adapters.dashboards.pipeline import PIPELINE
from stepwell.adapters.dashboards.policies import POLICIES

DASHBOARDS: tuple[Dashboard, ...] = (FLEET, POLICIES, FAILURES, EPISODE_DASHBOARD, PIPELINE, MACHINES)
