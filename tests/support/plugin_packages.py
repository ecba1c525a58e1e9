"""Packages that add engines, installed into a test's folder without pip.

The files are the ones that pip would install.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

PLUGINS = Path(__file__).parents[2] / "examples/plugins"
GROUP = "windlass.engines"


def install(source: Path, target: Path) -> None:
    """Install the package of a folder that has a pyproject.toml."""
    about = tomllib.loads((source / "pyproject.toml").read_text())
    modules = {name: (source / f"{name}.py").read_text() for name in _read_modules(about)}
    project = about["project"]
    write(target, project["name"], project["entry-points"][GROUP], modules)


def _read_modules(about: Mapping[str, dict]) -> list[str]:
    return about["tool"]["setuptools"]["py-modules"]


def write(
    target: Path, package: str, engines: Mapping[str, str], modules: Mapping[str, str]
) -> None:
    """Write an installed package: its modules and the entry points of its engines."""
    target.mkdir(exist_ok=True)
    for name, text in modules.items():
        (target / f"{name}.py").write_text(text)
    info = target / f"{package.replace('-', '_')}-0.1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 0.1.0\n")
    rows = "".join(f"{name} = {place}\n" for name, place in engines.items())
    (info / "entry_points.txt").write_text(f"[{GROUP}]\n{rows}")
