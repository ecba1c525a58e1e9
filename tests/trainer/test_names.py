"""Names in windlass.trainer, and the errors for the SDK's other names."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys

import pytest

import windlass.trainer


def test_all_names_exist():
    for name in windlass.trainer.__all__:
        assert getattr(windlass.trainer, name).__name__ == name
    assert set(windlass.trainer.__all__) <= set(dir(windlass.trainer))


@pytest.mark.parametrize(
    ("name", "advice"),
    [
        ("TorchTuneInstructDataset", "a BuiltinTrainer reads JSONL"),
        ("S3DatasetInitializer", "load data and models in the function"),
        ("ContainerBackendConfig", "TrainerClient(engine='local')"),
        ("TrainingClient", "TrainerClient also has its create_job"),
        ("update_trainjob_status", "windlass.report("),
    ],
)
def test_unsupported_names_have_a_hint(name, advice):
    with pytest.raises(ImportError) as caught:
        importlib.import_module("windlass.trainer").__getattr__(name)
    assert advice in str(caught.value)


def test_unknown_names_raise():
    with pytest.raises(AttributeError, match="has no attribute 'nonsense'"):
        _ = windlass.trainer.nonsense


@pytest.mark.parametrize("code", ["import windlass; windlass.submit", "import windlass.trainer"])
def test_import_loads_no_unused_modules(code):
    script = f"{code}\nimport json, sys; print(json.dumps(list(sys.modules)))"
    command = [sys.executable, "-c", script]
    answer = subprocess.run(command, capture_output=True, text=True, check=True)
    loaded = set(json.loads(answer.stdout))
    assert "windlass.trainer.client" not in loaded
    assert not {"torch", "kubeflow", "kubernetes"} & loaded
