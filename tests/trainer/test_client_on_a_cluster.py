"""TrainerClient on a cluster with Kubeflow Trainer: the objects that kubectl shows, and their removal."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from cluster_space import Space
from kube.plans import make_pod_plan
from operator_jobs import ALL_REDUCE
from trainer.guide_run import GUIDE_JOB, run_guide
from trainer.trained import AWKWARD, make_failure, make_sum
from waits import wait_for

import windlass as wl
from windlass import names
from windlass.engines.dialects.trainjob import TRAINJOB
from windlass.engines.exports.torchrun_exports import make_plain_trainjob
from windlass.errors import EngineMissing
from windlass.kube.client.access import check_needs
from windlass.kube.client.api import Api
from windlass.kube.objects.fields import is_true, name_of
from windlass.kube.objects.kinds import (
    CONFIG_MAPS,
    JOBS,
    NETWORK_POLICIES,
    NODES,
    PODS,
    SECRETS,
    SERVICES,
    TRAIN_JOBS,
    TRAINING_RUNTIMES,
)
from windlass.kube.objects.torchrun_pods import Rendezvous
from windlass.trainer import (
    CustomTrainer,
    CustomTrainerContainer,
    KubernetesBackendConfig,
    TrainerClient,
)
from windlass.trainer.options import Name, TrainerCommand

pytestmark = pytest.mark.cluster
LLM_IMAGE = "localhost/llm:testbed"
ONE_CPU = {"cpu": 1}  # on a busy machine, pods without a request wait for all others


@pytest.fixture
def api(space: Space, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Api:
    monkeypatch.chdir(tmp_path)
    try:
        check_needs(space.api, TRAINJOB.needs)
    except EngineMissing as missing:
        pytest.skip(missing.message)
    monkeypatch.setenv("WINDLASS_IMAGE", space.image)
    return space.api


@pytest.fixture
def client(api: Api) -> Iterator[TrainerClient]:
    client = TrainerClient(KubernetesBackendConfig(namespace=api.namespace))
    yield client
    for job in client.list_jobs():
        client.delete_job(job.name)


def list_objects(api: Api, job: str) -> list[str]:
    """Return all objects whose name starts with the job's name."""
    kinds = (TRAIN_JOBS, TRAINING_RUNTIMES, JOBS, PODS, SECRETS, SERVICES, NETWORK_POLICIES)
    return [
        f"{kind.name}/{name_of(body)}"
        for kind in (*kinds, CONFIG_MAPS)
        for body in api.list(kind)
        if name_of(body).startswith(job)
    ]


def read_conditions(api: Api, job: str) -> dict[str, bool]:
    conditions = api.get(TRAIN_JOBS, job).get("status", {}).get("conditions") or ()
    return {condition["type"]: is_true(condition) for condition in conditions}


def read_event_kinds(client: TrainerClient) -> set[str]:
    return {event.involved_object_kind for event in client.get_job_events("custom")}


def test_guide_runs_verbatim(api, monkeypatch, tmp_path):
    monkeypatch.setenv("WINDLASS_NAMESPACE", api.namespace)
    assert "uses the engine trainjob in namespace" in run_guide(tmp_path / "project")
    client = TrainerClient()  # another process than the one that created the job
    assert client.get_job_status(GUIDE_JOB) == "Succeeded"
    wait_for(lambda: read_conditions(api, GUIDE_JOB).get("Complete", False), "it is Complete")
    assert {f"TrainJob/{GUIDE_JOB}", f"Secret/{GUIDE_JOB}"} < set(list_objects(api, GUIDE_JOB))
    client.delete_job(GUIDE_JOB)
    wait_for(lambda: not list_objects(api, GUIDE_JOB), "nothing is left")


def test_a_custom_trainer_succeeds_fails_and_its_name_is_free_again(api, client):
    assert client.engine == "trainjob"
    options = [Name("custom")]
    trainer = CustomTrainer(
        func=make_sum(), func_args={"more": 1}, num_nodes=2, resources_per_node=ONE_CPU
    )
    assert client.train(trainer=trainer, options=options) == "custom"
    with pytest.raises(RuntimeError, match="job custom already exists"):
        TrainerClient(namespace=api.namespace).train(trainer=trainer, options=options)
    job = client.wait_for_job_status("custom", timeout=300)
    assert job.results() == [(3.0 + 6.0, 2, AWKWARD)] * 2
    assert [(step.name, step.status) for step in job.steps] == [
        ("node-0", "Succeeded"),
        ("node-1", "Succeeded"),
    ]
    assert all(step.pod_name.startswith(f"custom-{step.name[:-2]}-0-") for step in job.steps)
    assert list(client.get_job_logs("custom", step="node-1")) == [f"rank 1 of 2: {AWKWARD}"]
    wait_for(lambda: {"JobSet", "Job", "Pod"} <= read_event_kinds(client), "events of all kinds")
    client.delete_job("custom")

    # Two processes per node, as a node has two CPUs. The cluster may still be deleting the first job.
    failing = CustomTrainer(func=make_failure(), resources_per_node={"cpu": 2})
    client.train(trainer=failing, options=options)
    with pytest.raises(RuntimeError, match=r"is Failed: .*boom"):
        client.wait_for_job_status("custom", timeout=300)
    with pytest.raises(KeyError, match="boom"):
        client.get_job("custom").results()
    assert (client.get_job_status("custom"), client.get_job("custom").status) == (
        "Failed",
        "Failed",
    )
    wait_for(lambda: read_conditions(api, "custom").get("Failed", False), "the object, too")
    client.delete_job("custom")
    wait_for(lambda: not list_objects(api, "custom"), "nothing is left")


def test_job_without_an_image_uses_that_of_its_runtime(api, monkeypatch):
    monkeypatch.delenv("WINDLASS_IMAGE")
    client = TrainerClient(namespace=api.namespace)
    job = client.create_job("no-image", train_func=lambda: "ran", resources_per_worker=ONE_CPU)
    assert job.results() == ["ran"]
    image = client.get_runtime("torch-distributed").trainer.image
    assert client.get_job("no-image").runtime.trainer.image == image
    client.delete_job("no-image")


def test_a_container_runs_its_command_once_per_node(client):
    container = CustomTrainerContainer(
        image=client._settings.image, num_nodes=2, resources_per_node=ONE_CPU
    )
    command = ["torchrun", "--no-python", "python3", "-c", ALL_REDUCE]
    name = client.train(trainer=container, options=[TrainerCommand(command)])
    assert client.wait_for_job_status(name, timeout=300).status == "Complete"
    lines = sorted(client.get_job_logs(name, step="all"))
    assert [line for line in lines if line.startswith("rank")] == [
        "rank 0 of 2: 2",
        "rank 1 of 2: 2",
    ]


def test_failed_container_fails_the_job(client):
    container = CustomTrainerContainer(image=client._settings.image, env={"CODE": "3"})
    options = [Name("exits"), TrainerCommand(["sh", "-c", 'echo "leaving with $CODE"; exit $CODE'])]
    client.train(trainer=container, options=options)
    assert client.wait_for_job_status("exits", {"Failed"}, timeout=300).status == "Failed"
    assert list(client.get_job_logs("exits")) == ["leaving with 3"]
    with pytest.raises(wl.RankFailed):
        client.get_job("exits").results()


def test_trainjob_of_others_is_found_by_name(api, space, client):
    plan = make_pod_plan(job_id="theirs", nodes=1, procs=2, image=space.image)
    code, exported = make_plain_trainjob(plan, script=ALL_REDUCE, rendezvous=Rendezvous())
    api.create(CONFIG_MAPS, code)
    api.create(TRAIN_JOBS, exported)
    with pytest.raises(RuntimeError, match="job theirs already exists"):
        client.create_job("theirs", train_func=print)
    job = client.wait_for_job_status("theirs", timeout=300)
    assert [(step.name, step.status) for step in job.steps] == [("node-0", "Succeeded")]
    lines = sorted(line for line in client.get_job_logs("theirs") if line.startswith("rank"))
    assert lines == ["rank 0 of 2: 2", "rank 1 of 2: 2"]
    with pytest.raises(wl.WindlassError, match="was not created by Windlass"):
        job.results()
    client.delete_job("theirs")
    api.delete(CONFIG_MAPS, name_of(code))
    wait_for(lambda: not list_objects(api, "theirs"), "nothing is left")


def test_runtimes(client):
    runtimes = {runtime.name: runtime for runtime in client.list_runtimes()}
    assert client.get_runtime("torch-distributed") == runtimes["torch-distributed"]
    assert runtimes["torch-distributed"].trainer.framework == "torch"
    assert runtimes["torch-distributed"].trainer.image
    with pytest.raises(ValueError, match="did you mean torch-distributed"):
        client.train(runtime="torch-distribute", trainer=CustomTrainer(func=print))
    assert client.list_jobs() == []


def test_image_of_the_client_overrides_that_of_the_runtime(api: Api, space: Space) -> None:
    client = TrainerClient(engine="trainjob", namespace=api.namespace, image=space.image)
    options = [Name("mine")]
    client.train("torch-distributed", trainer=CustomTrainer(func=make_sum()), options=options)
    its_own = f"{names.LABEL_JOB}=mine"
    wait_for(lambda: bool(api.list(PODS, labels=its_own)), "its pods are there")
    pods = api.list(PODS, labels=its_own)
    client.delete_job("mine")
    assert {one["image"] for pod in pods for one in pod["spec"]["containers"]} == {space.image}


def make_fsdp() -> Any:
    def train_sharded(parameters: dict[str, int]) -> tuple[bool, list[int]]:
        """Return each rank's share of the model, and whether training reduced the loss."""
        import torch
        import torch.distributed as dist
        from torch.distributed.fsdp import fully_shard

        dist.init_process_group("gloo")
        torch.manual_seed(0)
        model = torch.nn.Sequential(
            torch.nn.Linear(16, 32), torch.nn.ReLU(), torch.nn.Linear(32, 1)
        )
        for layer in (model[0], model[2]):
            fully_shard(layer)
        fully_shard(model)
        optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
        data = torch.randn(64, 16)
        losses = []
        for _ in range(parameters["steps"]):
            loss = (model(data) - data.sum(1, keepdim=True)).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.item())
        shape = list(model[0].weight.to_local().shape)
        dist.destroy_process_group()
        return losses[-1] < losses[0] / 2, shape

    return train_sharded


def test_fsdp_through_a_trainjob(client):
    job = client.create_job(
        "sharded",
        train_func=make_fsdp(),
        num_workers=2,
        num_procs_per_worker=2,
        resources_per_worker=ONE_CPU,
        parameters={"steps": 60},
    )
    assert client.wait_for_job_conditions("sharded", wait_timeout=300).status == "Succeeded"
    assert job.results() == [(True, [8, 16])] * 4


def test_a_script_with_transformers_trainer_through_a_trainjob(api, monkeypatch, tmp_path):
    images = [
        name
        for node in api.list(NODES)
        for image in node["status"].get("images") or ()
        for name in image.get("names") or ()
    ]
    if LLM_IMAGE not in images:
        pytest.skip(f"no node has the image {LLM_IMAGE}")
    shutil.copy(Path(__file__).parent / "hf_trainer.py", tmp_path)
    job = wl.submit(
        "hf_trainer.py",
        engine="trainjob",
        image=LLM_IMAGE,
        namespace=api.namespace,
        nodes=2,
        cpus="1",
        env={"HF_HUB_OFFLINE": "1"},
    )
    job.results(timeout_s=300)
    lines = [line.text for line in job.logs(grep="^rank")]
    assert sorted(line.partition(":")[0] for line in lines) == ["rank 0 of 2", "rank 1 of 2"]
    job.remove()
    wait_for(lambda: not api.list(TRAIN_JOBS, labels=names.LABEL_JOB), "nothing is left")


def test_plain_jobs_without_kubeflow_trainer(api):
    client = TrainerClient(engine="kubernetes", namespace=api.namespace)
    job = client.create_job(
        "plain", train_func=make_sum(), num_procs_per_worker=2, resources_per_worker=ONE_CPU
    )
    assert job.results(timeout_s=300) == [(1.0 + 6.0, 2, AWKWARD)] * 2
    assert name_of(api.get(JOBS, "plain")) == "plain"
    assert [known.name for known in client.list_runtimes()] == ["torch-distributed"]
    client.delete_job("plain")
    wait_for(lambda: not list_objects(api, "plain"), "nothing is left")
