"""Translation of the SDKs' arguments to those of `wl.submit`."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import pytest

from windlass import names
from windlass.trainer import CustomTrainer, CustomTrainerContainer
from windlass.trainer.options import Labels, Name, TrainerArgs, TrainerCommand, read_sdk_options
from windlass.trainer.sdk_errors import WrongArgument
from windlass.trainer.translate import JobRequest, read_trainer, read_v1_job


def read_job(**given: Any) -> JobRequest:
    keywords: dict[str, Any] = {
        "name": "x",
        "base_image": None,
        "parameters": None,
        "num_workers": 1,
        "num_procs_per_worker": None,
        "resources_per_worker": None,
        "packages": None,
        "pip_index_urls": (),
        "env_vars": None,
        "more": {},
    }
    return read_v1_job(print, **{**keywords, **given})


def test_minimal_arguments():
    request = read_job()
    assert (request.target, request.args, request.kwargs) == (print, (), {})
    assert request.settings == {"nodes": 1, "env": {}}


def test_v1():
    request = read_job(
        base_image="torch:1",
        parameters={"lr": 1},
        num_workers=3,
        num_procs_per_worker=2,
        resources_per_worker={"cpu": "4", "gpu": "1"},
        env_vars=[SimpleNamespace(name="A", value="1")],
        more={"queue_name": "fast", "restarts": 2, "labels": None, "job_kind": "PyTorchJob"},
    )
    assert request.args == ({"lr": 1},)
    assert request.settings == {
        "image": "torch:1",
        "nodes": 3,
        "procs": 2,
        "cpus": "4",
        "gpus": 1,
        "env": {"A": "1"},
        "queue": "fast",
        "restarts": 2,
    }


@pytest.mark.parametrize(
    ("procs", "meant"), [("auto", None), ("gpu", None), ("cpu", 4), (3, 3), ("3", "3")]
)
def test_processes_per_worker(procs, meant):
    request = read_job(num_procs_per_worker=procs, resources_per_worker={"cpu": "4"})
    assert request.settings.get("procs") == meant


def test_packages_are_steps():
    urls = ["https://a/simple", "https://b/simple"]
    request = read_job(packages=["einops", "numpy>=2"], pip_index_urls=urls, env_vars={"A": 1})
    (step,) = json.loads(request.settings["env"].pop(names.STEPS))
    assert step["packages"] == [
        *("--index-url", "https://a/simple", "--extra-index-url", "https://b/simple"),
        *("einops", "numpy>=2"),
    ]
    assert request.settings["env"] == {"A": "1"}


def test_single_package_is_not_split_into_letters():
    request = read_job(packages="einops", pip_index_urls="https://a/simple")
    (step,) = json.loads(request.settings["env"].pop(names.STEPS))
    assert step["packages"] == ["--index-url", "https://a/simple", "einops"]


def test_a_value_from_a_secret_is_not_an_env_var():
    with pytest.raises(WrongArgument, match="variables must be a dict"):
        read_job(env_vars=[SimpleNamespace(name="A", value=None)])


def test_v2():
    trainer = CustomTrainer(
        func=print,
        func_args={"sep": "-"},
        image="torch:1",
        num_nodes=2,
        resources_per_node={"cpu": 3, "memory": "1Gi"},
        env={"A": "1"},
    )
    options = read_sdk_options([Name("x"), Labels({"kueue.x-k8s.io/queue-name": "fast"})])
    request = read_trainer(trainer, options)
    assert (request.target, request.kwargs, request.name) == (print, {"sep": "-"}, "x")
    assert request.settings == {
        "image": "torch:1",
        "nodes": 2,
        "procs": 3,
        "cpus": "3",
        "memory": "1Gi",
        "env": {"A": "1"},
        "queue": "fast",
    }


def test_container_runs_its_command_in_its_image():
    options = read_sdk_options([TrainerCommand(["torchrun", "/app/main.py"]), TrainerArgs(["--x"])])
    request = read_trainer(CustomTrainerContainer(image="torch:1", num_nodes=2), options)
    assert request.target == ("torchrun", "/app/main.py", "--x")
    assert request.settings == {"image": "torch:1", "nodes": 2, "env": {}, "in_image": True}
