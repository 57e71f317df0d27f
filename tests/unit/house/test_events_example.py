"""The program in docs/events.md writes a fact as it stands there."""

import os
import re
import subprocess
import sys
from pathlib import Path

from stepwell.adapters.history import fold_episodes
from stepwell.adapters.logs import open_log
from stepwell.adapters.runs.summary import requested_at
from stepwell.events.codec import Codec
from stepwell.events.ids import episode_id_for

PAGE = Path(__file__).resolve().parents[3] / "docs" / "events.md"


def test_the_example_writes_a_fact_that_is_folded(tmp_path: Path) -> None:
    (program,) = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)
    environment = {name: value for name, value in os.environ.items() if not name.startswith("STEPWELL_")}
    subprocess.run(
        [sys.executable, "-W", "error", "-c", program],
        env=environment | {"STEPWELL_HOME": str(tmp_path)},
        cwd=tmp_path,
        check=True,
    )
    log = open_log(f"local:{tmp_path / 'log'}")
    (state,) = fold_episodes(log, Codec()).values()
    log.close()
    assert state.episode_id == episode_id_for("lab-1", "lab/stack-cups", "policy=gripper|scene=table|seed=1", 0)
    assert requested_at(state) > 0
