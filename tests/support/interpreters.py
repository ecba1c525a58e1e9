"""Interpreters of this machine, for tests that run agents on each of them."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

DEBIAN = "Debian's own"
_ASK = "import sys; print('%d.%d' % sys.version_info[:2])"


def _ask_version(path: str) -> str:
    """Return an interpreter's version as 3.x, or "" if it does not start."""
    answer = subprocess.run([path, "-c", _ASK], capture_output=True, text=True)
    return answer.stdout.strip() if answer.returncode == 0 else ""


def find_pythons(first_minor: int = 10) -> dict[str, str]:
    """Return a Python of each version from 3.`first_minor` on that starts, by version.

    Looks in PATH and pyenv. Debian's own is always included, because distributions keep bugs that others have
    fixed.
    """
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"), "versions")
    candidates = [shutil.which(f"python3.{minor}") for minor in range(first_minor, 20)]
    candidates += [str(path) for path in sorted(pyenv.glob("3.*/bin/python3"))]
    found: dict[str, str] = {}
    for path in filter(None, candidates):
        version = _ask_version(path)
        if version and int(version.partition(".")[2]) >= first_minor:
            found.setdefault(version, path)
    if Path("/etc/debian_version").exists() and Path("/usr/bin/python3").exists():
        found[DEBIAN] = "/usr/bin/python3"
    return found


SUPPORTED = (DEBIAN, "3.10", "3.11", "3.12", "3.13", "3.14")


def need_python(version: str) -> str:
    """Return an interpreter's path, or skip the test and name the missing version."""
    path = find_pythons().get(version)
    if path is None:
        pytest.skip(f"there is no Python here: {version}")
    return path
