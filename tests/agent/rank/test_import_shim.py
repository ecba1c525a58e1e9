"""Import shim: commands find `windlass` without an installation, and nothing else of the archive."""

from __future__ import annotations

import json
import subprocess
import sys

from windlass.engines.archives import build_archive

LEND = """
import os, sys
sys.argv = [{archive!r}]
sys.path.insert(0, {archive!r})
from pathlib import Path
from windlass.agent.rank.rank_setup import lend_package
lend_package(Path({folder!r}))
os.execv(sys.executable, [sys.executable, *{flags}, "-c", {then!r}])
"""
LOOK = """
import importlib.util, json, windlass, windlass.distributed
print(json.dumps([windlass.__version__, windlass.__file__, windlass.distributed.__file__,
                  importlib.util.find_spec("cloudpickle") is not None]))
windlass.report(step=1)
"""


def look(tmp_path, *flags):
    """Return what a command finds in an interpreter started with these flags."""
    archive = tmp_path / "agent.pyz"
    archive.write_bytes(build_archive())
    code = LEND.format(archive=str(archive), folder=str(tmp_path / "lent"), flags=flags, then=LOOK)
    done = subprocess.run([sys.executable, *flags, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_windlass_is_found_without_an_installation(tmp_path):
    version, package, module, has_cloudpickle = look(tmp_path, "-S")
    assert version
    assert package == str(tmp_path / "agent.pyz" / "windlass" / "__init__.py")
    assert module == str(tmp_path / "agent.pyz" / "windlass" / "distributed.py")
    assert not has_cloudpickle


def test_installed_windlass_is_preferred(tmp_path):
    _, package, module, has_cloudpickle = look(tmp_path)
    assert "agent.pyz" not in module
    assert not package.startswith(str(tmp_path))
    assert has_cloudpickle
