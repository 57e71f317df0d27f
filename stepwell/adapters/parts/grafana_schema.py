"""Grafana's own schema of a dashboard (TypeScript types, npm package ``@grafana/schema``), and the compiler to check.

Grafana itself is in no registry that a test can reach; its types are. A dashboard's JSON passes when TypeScript takes
it for a ``Dashboard``, and each panel's options and field settings for those of its kind. A field that Grafana does not
know is refused as well.
"""

import json
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from importlib import resources
from pathlib import Path
from typing import Any

from stepwell.adapters.parts import exclusive, npm_install, parts_directory, require_command, write_if_changed

__all__ = ["VERSION", "check", "install"]

VERSION = "12.1.1"
_PACKAGED = ("package.json", "package-lock.json")
# Kind of panel -> name of its types, and whether it has field settings of its own.
_KINDS = {
    "timeseries": ("TimeSeriesPanelCfg", True),
    "table": ("TablePanelCfg", True),
    "trend": ("TrendPanelCfg", True),
    "stat": ("StatPanelCfg", False),
}
# Grafana's enums have text as values, which JSON holds as plain text.
_JSON = (
    "type Json<T> = T extends string ? `${T}` : T extends (infer E)[] ? Json<E>[]"
    " : T extends object ? { [K in keyof T]: Json<T[K]> } : T;"
)
_COMPILER = {
    "compilerOptions": {
        "strict": True, "noEmit": True, "module": "nodenext", "moduleResolution": "nodenext", "target": "es2022",
        "skipLibCheck": True, "types": [],
    },
    "files": ["check.ts"],
}  # fmt: skip


def install(parts_dir: Path | None = None) -> Path:
    """Bring types and compiler; does nothing where both are there. Safe when several processes call it at once.

    Returns:
        the installation's folder, with ``node_modules/``.

    Raises:
        MissingPartError: node or npm is missing, or npm could not bring the packages.
    """
    home = (parts_dir or parts_directory()) / f"grafana-schema-{VERSION}"
    require_command("node", "nodejs")
    with exclusive(home / "lock"):
        for name in _PACKAGED:
            write_if_changed(home / name, resources.files(__package__).joinpath("grafana_types", name).read_bytes())
        if not (home / "node_modules" / ".package-lock.json").exists():
            npm_install(home, f"Grafana's schema {VERSION}")
    return home


def check(dashboards: Mapping[str, dict[str, Any]], home: Path | None = None) -> list[str]:
    """What Grafana's types say against these dashboards; nothing when all is well.

    Args:
        dashboards: parsed JSON by a name of letters, digits and underscores.
        home: the installation, as `install` returns it; None installs where needed.

    Raises:
        MissingPartError: as `install`.
    """
    home = home or install()
    with tempfile.TemporaryDirectory(dir=home, prefix="check-") as scratch:
        Path(scratch, "check.ts").write_text(_source(dashboards), encoding="utf-8")
        Path(scratch, "tsconfig.json").write_text(json.dumps(_COMPILER), encoding="utf-8")
        compiler = home / "node_modules" / "typescript" / "bin" / "tsc"
        done = subprocess.run(
            [require_command("node", "nodejs"), str(compiler), "--project", scratch, "--pretty", "false"],
            cwd=scratch, capture_output=True, text=True, stdin=subprocess.DEVNULL, check=False,
        )  # fmt: skip
    problems = done.stdout.splitlines()
    return problems or ([done.stderr] if done.returncode else [])


def _source(dashboards: Mapping[str, dict[str, Any]]) -> str:
    lines = ["import type { Dashboard } from '@grafana/schema';"]
    for kind, (name, _) in _KINDS.items():
        path = f"@grafana/schema/dist/esm/raw/composable/{kind}/panelcfg/x/{name}_types.gen.d.ts"
        lines.append(f"import type * as {kind} from '{path}';")
    lines.append(_JSON)
    for name, dashboard in dashboards.items():
        lines.append(f"export const {name}: Json<Dashboard> = {json.dumps(dashboard, indent=1)};")
        for panel in dashboard.get("panels", []):
            lines += _panel(f"{name}_{panel['id']}", panel)
    return "\n".join(lines) + "\n"


def _panel(name: str, panel: dict[str, Any]) -> list[str]:
    kind = panel["type"]
    if kind not in _KINDS:
        return [f"export const {name}: never = {json.dumps(f'no types are known for panels of kind {kind}')};"]
    options = json.dumps(panel.get("options", {}), indent=1)
    custom = json.dumps(panel["fieldConfig"]["defaults"].get("custom", {}), indent=1)
    # What a file leaves out has its default in Grafana.
    fields = f"Json<Partial<{kind}.FieldConfig>>" if _KINDS[kind][1] else "Record<string, never>"
    return [
        f"export const {name}_options: Json<Partial<{kind}.Options>> = {options};",
        f"export const {name}_custom: {fields} = {custom};",
    ]


if __name__ == "__main__":
    if sys.argv[1:] != ["install"]:
        sys.exit("usage: python -m stepwell.adapters.parts.grafana_schema install")
    print(f"Grafana's schema {VERSION}: {install()}")
