"""A client with another Python than the image: functions by reference work, those by value are refused."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from chaos_cluster.ground import Ground

import windlass

pytestmark = [pytest.mark.cluster, pytest.mark.chaos]

_NEEDS = ("click", "cloudpickle", "cryptography", "pathspec", "pyyaml", "urllib3", "websockets")
_CLIENT = """
import json, sys, windlass as wl
import named

def here(word):
    return word * 2

kind, settings = sys.argv[1], json.loads(sys.argv[2])
word = "by " + kind
target = {"reference": named.double, "lambda": lambda: word, "value": here}[kind]
job = wl.submit(target, () if kind == "lambda" else (word,), **settings)
status = job.wait(90)
print(json.dumps({
    "id": job.id,
    "phase": status.phase.value,
    "results": job.results() if status.phase.value == "succeeded" else None,
    "verdict": [status.verdict.kind.value, status.verdict.message] if status.verdict else None,
    "running": [moment.name for moment in status.timeline],
    "pids": [rank.pid for rank in status.ranks],
}))
"""


def _find_other() -> str | None:
    """Return a Python 3.12 from PATH or pyenv. The tests' image has the same Python as this process."""
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"), "versions")
    found = [shutil.which("python3.12"), *map(str, pyenv.glob("3.12.*/bin/python3"))]
    for path in filter(None, found):
        code = "import sys; sys.exit(sys.version_info[:2] != (3, 12))"
        if not subprocess.run([path, "-c", code], capture_output=True).returncode:
            return path
    return None


@pytest.fixture(scope="module")
def other(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Create a Python 3.12 environment with the dependencies of Windlass."""
    if sys.version_info[:2] == (3, 12):
        pytest.skip("this is Python 3.12, as the client would be")
    found = _find_other()
    if found is None:
        pytest.skip("there is no Python 3.12 here")
    folder = tmp_path_factory.mktemp("python")
    subprocess.run([found, "-m", "venv", str(folder)], check=True, timeout=60)
    python = str(folder / "bin" / "python")
    install = [python, "-m", "pip", "install", "-q", *_NEEDS]
    done = subprocess.run(install, capture_output=True, text=True, timeout=150)
    if done.returncode:
        pytest.skip("Windlass's dependencies cannot be had for Python 3.12")
    return python


def _run(ground: Ground, python: str, kind: str) -> dict:
    (ground.folder / "named.py").write_text("def double(word):\n    return word * 2\n")
    (ground.folder / "client.py").write_text(_CLIENT)
    settings = json.dumps({"nodes": 2, "preload": [], **ground.settings})
    done = subprocess.run(
        [python, "client.py", kind, settings],
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, "PYTHONPATH": str(Path(windlass.__file__).parents[1])},
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_function_by_reference(ground, other):
    found = _run(ground, other, "reference")
    assert found["phase"] == "succeeded", found
    assert found["results"] == ["by referenceby reference"] * 2


@pytest.mark.parametrize("kind", ["lambda", "value"])
def test_function_by_value(ground, other, kind):
    found = _run(ground, other, kind)
    assert found["phase"] == "failed", found
    reason, message = found["verdict"]
    assert reason == "start failed"
    assert "by value from Python 3.12" in message
    assert "put it in a module of the project" in message
    assert "ranks running" not in found["running"], found
    assert set(found["pids"]) == {None}
