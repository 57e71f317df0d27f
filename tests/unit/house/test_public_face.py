import subprocess
import sys

import pytest

import stepwell

# A name leaves this list only in a major version.
PUBLIC = [
    "AsyncSubscription",
    "ConfigurationError",
    "Delivery",
    "RetrainRequested",
    "RetrainWithdrawn",
    "StepwellError",
    "Subscription",
    "__version__",
    "subscribe",
    "subscribe_async",
]


def test_public_names_are_pinned() -> None:
    assert sorted(stepwell.__all__) == PUBLIC


def test_every_public_name_is_there() -> None:
    for name in stepwell.__all__:
        assert getattr(stepwell, name) is not None
    assert set(stepwell.__all__) <= set(dir(stepwell))


def test_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        _ = stepwell.nonsense


def test_importing_the_package_loads_none_of_its_rooms() -> None:
    code = "import sys; import stepwell; print(*[m for m in sys.modules if m.startswith('stepwell.')])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""
