"""Public names, which are frozen and cheap to import."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

import windlass

NAMES = [
    "BundleError", "Compute", "EngineError", "Image", "Job", "JobCancelled", "JobError", "JobNotFound",
    "JobTimeout", "NodeLost", "ProtocolError", "RankFailed", "RemoteError", "Secret", "SpecError",
    "StepFailed", "Volume", "WaitTimeout", "WindlassError", "__version__", "app", "attach", "cls",
    "compute", "distribute", "fn", "get", "images", "jobs", "report", "run", "submit",
]  # fmt: skip


def test_the_public_names_are_frozen():
    assert sorted(windlass.__all__) == NAMES
    assert set(NAMES) <= set(dir(windlass))


@pytest.mark.parametrize("name", NAMES)
def test_every_public_name_exists(name):
    assert getattr(windlass, name) is not None


def test_unknown_names_raise():
    with pytest.raises(AttributeError, match="has no attribute 'nonsense'"):
        _ = windlass.nonsense


def _modules(code: str) -> set[str]:
    script = f"{code}\nimport json, sys; print(json.dumps(list(sys.modules)))"
    answer = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    return set(json.loads(answer.stdout))


def test_importing_the_package_loads_few_modules():
    bare, loaded = _modules(""), _modules("import windlass")
    heavy = {"torch", "numpy", "click", "yaml", "asyncio", "cloudpickle", "pathspec", "socket"}
    assert not heavy & (loaded - bare)
    assert len(loaded - bare) < 60


def test_report_loads_few_modules():
    loaded = _modules("import windlass; windlass.report") - _modules("")
    assert (
        not {"torch", "numpy", "click", "yaml", "asyncio", "cloudpickle", "windlass.client"}
        & loaded
    )


def test_version_is_that_of_the_package():
    from importlib.metadata import version

    assert version("windlass") == windlass.__version__
