"""TrainJobs on a cluster with Kubeflow Trainer: their end, replaced pods, and refusals."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from cluster_shared import make_shared
from cluster_space import Space
from kube.plans import make_pod_plan
from operator_jobs import ALL_REDUCE, make_work, read_exit_code, use_dialect
from waits import wait_for

import windlass as wl
from windlass import names
from windlass.engines.dialects.trainjob import LABEL_INDEX, LABEL_JOBSET, SHIPPED, TRAINJOB
from windlass.engines.exports.torchrun_exports import make_plain_trainjob
from windlass.errors import SpecError, WindlassError
from windlass.kube.client.api import Api
from windlass.kube.diagnosis.blocker import OPERATOR_IDLE, QUEUE_MISSING
from windlass.kube.objects.kinds import CONFIG_MAPS, PODS, TRAIN_JOBS, TRAINING_RUNTIMES
from windlass.kube.objects.torchrun_pods import Rendezvous
from windlass.wire.status import Phase

pytestmark = pytest.mark.cluster


@pytest.fixture
def api(space: Space, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Api]:
    with use_dialect(TRAINJOB, space, monkeypatch, tmp_path):
        yield space.api
    wait_for(lambda: not runtimes_of_jobs(space.api), "no job's own runtime is left")


def runtimes_of_jobs(api: Api) -> list[dict[str, Any]]:
    return api.list(TRAINING_RUNTIMES, labels=names.LABEL_JOB)


@pytest.fixture
def shared(api: Api, space: Space, tmp_path: Any) -> Any:
    return make_shared(space.files, tmp_path)


def pods_of(api: Api, name: str) -> dict[str, dict[str, Any]]:
    """Return the pods of a job by index."""
    pods = api.list(PODS, labels=f"{LABEL_JOBSET}={name}")
    return {pod["metadata"]["labels"][LABEL_INDEX]: pod for pod in pods}


def is_complete(api: Api, name: str) -> bool | None:
    end = TRAINJOB.read_end(api.get(TRAIN_JOBS, name))
    return None if end is None else end.is_complete


def test_user_error_fails_the_trainjob_and_keeps_all_pods(api, shared):
    job = wl.submit(make_work(), (shared.path, True), nodes=2)
    wait_for(lambda: len(shared.names()) == 2, "both ranks run")
    before = pods_of(api, job.id)
    shared.touch("go")
    assert job.wait(90).phase is Phase.FAILED
    with pytest.raises(ValueError, match="the user's"):
        job.results()
    wait_for(lambda: is_complete(api, job.id) is False, "the TrainJob is Failed")
    after = pods_of(api, job.id)
    assert {index: read_exit_code(pod) for index, pod in after.items()} == {
        "0": names.EXIT_FAILED_WORK,
        "1": 0,
    }
    assert {i: p["metadata"]["uid"] for i, p in after.items()} == {
        i: p["metadata"]["uid"] for i, p in before.items()
    }


def reasons_of(job: wl.Job) -> set[str]:
    return {condition.reason for condition in job.status().conditions}


def test_missing_queue_is_named(api):
    job = wl.submit(["true"], queue="nowhere")
    wait_for(lambda: QUEUE_MISSING in reasons_of(job), "its status has the reason")
    assert api.get(TRAIN_JOBS, job.id)["spec"]["suspend"] is True
    assert pods_of(api, job.id) == {}


def test_message_of_the_webhook_is_shown_and_nothing_is_left(api):
    env = [{"name": "PET_NNODES", "value": "1"}]
    patch = {"spec": {"containers": [{"name": "windlass", "env": env}]}}
    with pytest.raises(WindlassError, match="PET_NNODES"):
        wl.submit(["true"], patch=json.dumps(patch))
    assert (wl.jobs(), runtimes_of_jobs(api)) == ([], [])


def test_message_of_the_operator_is_shown(api):
    job = wl.submit(["true"], patch=json.dumps({"spec": {"restartPolicy": "Always"}}))
    wait_for(lambda: OPERATOR_IDLE in reasons_of(job), "its status has the reason")
    (idle,) = [c for c in job.status().conditions if c.reason == OPERATOR_IDLE]
    assert idle.message.startswith("Kubeflow Trainer has not made the pods of TrainJob")
    assert "restartPolicy" in idle.message


# -- runtimes --------------------------------------------------------------------------------------


def test_runtime_of_the_namespace_is_used_unchanged(api):
    source = json.loads(json.dumps(SHIPPED["torch-distributed"]))
    (step,) = source["spec"]["template"]["spec"]["replicatedJobs"]
    node = {"name": "node", "image": "x", "env": [{"name": "SITE", "value": "here"}]}
    step["template"]["spec"]["template"]["spec"]["containers"] = [node]
    api.create(TRAINING_RUNTIMES, {**source, "metadata": {"name": "ours"}})
    try:
        job = wl.submit(["sh", "-c", "echo $SITE"], runtime="ours")
        assert job.wait(90).phase is Phase.SUCCEEDED
        assert [line.text for line in job.logs()] == ["here"]
    finally:
        api.delete(TRAINING_RUNTIMES, "ours")


def test_unknown_runtime_is_refused_with_the_known_ones(api):
    with pytest.raises(SpecError, match="no TrainingRuntime or ClusterTrainingRuntime") as e:
        wl.submit(["true"], runtime="torch-distribute")
    assert "torch-distributed" in e.value.hint
    assert (wl.jobs(), runtimes_of_jobs(api)) == ([], [])


# -- jobs of other tools ---------------------------------------------------------------------------


def test_plain_export_runs_and_can_be_read(api, space):
    plan = make_pod_plan(job_id="plain-ab2cd", nodes=2, procs=2, image=space.image)
    code, exported = make_plain_trainjob(plan, script=ALL_REDUCE, rendezvous=Rendezvous())
    api.create(CONFIG_MAPS, code)
    api.create(TRAIN_JOBS, exported)
    job = wl.attach("plain-ab2cd")
    assert job.wait(300).phase is Phase.SUCCEEDED
    lines = sorted(line.text for line in job.logs(grep="^rank"))
    assert lines == [f"rank {rank} of 4: 4" for rank in range(4)]
    assert len(job.status().nodes) == 2
    with pytest.raises(WindlassError, match="was not created by Windlass"):
        job.results()
    job.cancel()
    kept = [body["metadata"]["name"] for body in api.list(TRAIN_JOBS)]
    assert kept == ["plain-ab2cd"], "what has ended is its owner's to remove"
    api.delete(TRAIN_JOBS, "plain-ab2cd")
    wait_for(lambda: api.list(TRAIN_JOBS) == [], "what was deleted is gone")
    api.delete(CONFIG_MAPS, "plain-ab2cd-code")
