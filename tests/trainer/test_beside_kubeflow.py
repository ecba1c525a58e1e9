"""Comparison with the package `kubeflow`: equal names and, on a cluster, calls with equal results.

The package is that of this interpreter, or of the one that WINDLASS_TEST_KUBEFLOW names. Otherwise these
tests are skipped.
"""

from __future__ import annotations

import importlib.util
import json
import os
import secrets
import shutil
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from windlass.kube.client.api import connect
from windlass.kube.objects.kinds import NAMESPACES

CALLS = Path(__file__).parent / "sdk_calls.py"
HAS_KUBEFLOW = importlib.util.find_spec("kubeflow") is not None
# Read on import, because tests run without the WINDLASS_ variables of their environment.
THEIRS = os.environ.get("WINDLASS_TEST_KUBEFLOW", sys.executable if HAS_KUBEFLOW else "")
pytestmark = pytest.mark.skipif(
    not THEIRS, reason="needs the package kubeflow: the extra of that name"
)


def run_calls(folder: Path, python: str, *arguments: str) -> Any:
    """Run the calls in a separate folder, which is the project that is sent."""
    folder.mkdir()
    script = shutil.copy(CALLS, folder)
    command = [python, str(script), *arguments]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=400, cwd=folder)
    assert ran.returncode == 0, ran.stderr
    return json.loads(ran.stdout.splitlines()[-1])


def test_names_and_fields_match_the_sdk(tmp_path):
    theirs = run_calls(tmp_path / "theirs", THEIRS, "kubeflow.trainer")
    assert run_calls(tmp_path / "ours", sys.executable, "windlass.trainer") == theirs


@pytest.fixture
def namespaces() -> Iterator[list[str]]:
    """Yield two namespaces without Pod Security, because the SDK's pods run as root."""
    api = connect()
    made = [f"windlass-beside-{secrets.token_hex(4)}" for _ in range(2)]
    for name in made:
        api.create(NAMESPACES, {"metadata": {"name": name}})
    yield made
    for name in made:
        api.delete(NAMESPACES, name)


@pytest.mark.cluster
@pytest.mark.timeout(420)
def test_equal_calls_have_equal_results(namespaces, tmp_path):
    mine, other = namespaces
    with ThreadPoolExecutor() as pool:
        theirs = pool.submit(run_calls, tmp_path / "theirs", THEIRS, "kubeflow.trainer", other)
        ours = run_calls(tmp_path / "ours", sys.executable, "windlass.trainer", mine)
        assert ours == theirs.result()
    assert ours["job"] == ["sums", "Complete", 2, ["node-0", "node-1"]]
    assert ours["lines"] == ["rank 0 of 2: 3"]
    assert (ours["failed"], ours["waiting for success"]) == ("Failed", "RuntimeError")
