"""What can be imported from windlass.trainer, and what is said of the rest of the SDK's names."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys

import pytest

import windlass.trainer


def test_all_names_are_there():
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
def test_what_has_no_meaning_here_says_what_to_use(name, advice):
    with pytest.raises(ImportError) as caught:
        importlib.import_module("windlass.trainer").__getattr__(name)
    assert advice in str(caught.value)


def test_other_names_are_not():
    with pytest.raises(AttributeError, match="has no attribute 'nonsense'"):
        _ = windlass.trainer.nonsense


@pytest.mark.parametrize("code", ["import windlass; windlass.submit", "import windlass.trainer"])
def test_nobody_pays_for_what_is_not_used(code):
    told = f"{code}\nimport json, sys; print(json.dumps(list(sys.modules)))"
    command = [sys.executable, "-c", told]
    answer = subprocess.run(command, capture_output=True, text=True, check=True)
    loaded = set(json.loads(answer.stdout))
    assert "windlass.trainer.client" not in loaded
    assert not {"torch", "kubeflow", "kubernetes"} & loaded
