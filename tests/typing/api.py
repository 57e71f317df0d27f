"""The public face as a typed caller uses it; checked by mypy, never run."""

import stepwell
from stepwell import ConfigurationError, StepwellError
from stepwell.settings import Settings, get_settings

version: str = stepwell.__version__


def log_of(settings: Settings) -> str:
    return settings.log


def told(error: StepwellError) -> tuple[str, bool]:
    return str(error), error.retriable


try:
    print(log_of(get_settings()))
except ConfigurationError as refused:
    print(told(refused))
