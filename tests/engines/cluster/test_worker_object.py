"""A compute with another pod size for its workers: a second object, resized and removed with the first."""

from __future__ import annotations

import pytest
from cluster_engines import submit
from kube.fake_cluster import make_fake_pod

from windlass import names
from windlass.engines.dialects.kubernetes import KUBERNETES, LABEL_INDEX
from windlass.errors import SpecError
from windlass.spec.pod_spec import PodSize
from windlass.spec.work import Calls

SIZE = PodSize(gpus=1, cpus="4", memory="16Gi")
WORKERS = "train-ab2cd-workers"
pytestmark = pytest.mark.parametrize("dialect", [KUBERNETES], indirect=True)


def read_jobs(cluster):
    """Return the number of pods of each Job, by its name."""
    jobs = cluster.objects["jobs"]
    return {job["metadata"]["name"]: job["spec"]["completions"] for job in jobs}


def find_job(cluster, name):
    [job] = [job for job in cluster.objects["jobs"] if job["metadata"]["name"] == name]
    return job


def read_limits(cluster, name):
    [container] = find_job(cluster, name)["spec"]["template"]["spec"]["containers"]
    return container.get("resources", {}).get("limits", {})


def test_workers_are_a_second_job_owned_by_the_first(engine, cluster, dialect):
    ref = submit(engine, dialect, work=Calls(), cpus="2", nodes=1)
    engine.grow(ref, [1, 2], 3, workers=SIZE)
    assert read_jobs(cluster) == {"train-ab2cd": 1, WORKERS: 2}
    assert read_limits(cluster, "train-ab2cd") == {"cpu": "2"}
    assert read_limits(cluster, WORKERS) == {"cpu": "4", "memory": "16Gi", "nvidia.com/gpu": "1"}
    [owner] = find_job(cluster, WORKERS)["metadata"]["ownerReferences"]
    assert owner["uid"] == find_job(cluster, "train-ab2cd")["metadata"]["uid"]
    first, other = (
        find_job(cluster, name)["spec"]["template"]["spec"] for name in ("train-ab2cd", WORKERS)
    )
    assert other["volumes"][:3] == first["volumes"][:3]  # the job's Secrets, with the same files
    assert engine.jobs() == engine.computes() == [ref]


def test_first_job_has_only_node_0_if_workers_differ(engine, cluster, dialect):
    ref = submit(engine, dialect, work=Calls(), nodes=3, workers=SIZE)
    engine.grow(ref, (), 3, workers=SIZE)
    assert read_jobs(cluster) == {"train-ab2cd": 1, WORKERS: 2}


def test_worker_job_is_resized_and_replaced(engine, cluster, dialect):
    ref = submit(engine, dialect, work=Calls(), nodes=3)
    engine.grow(ref, (), 3, workers=SIZE)
    before = find_job(cluster, WORKERS)["metadata"]["uid"]
    engine.grow(ref, [3], 4)
    assert read_jobs(cluster) == {"train-ab2cd": 1, WORKERS: 3}
    engine.grow(ref, (), 2, workers=SIZE)
    assert read_jobs(cluster) == {"train-ab2cd": 1, WORKERS: 1}
    assert find_job(cluster, WORKERS)["metadata"]["uid"] == before
    engine.grow(ref, (), 2, workers=PodSize(gpus=2))
    assert find_job(cluster, WORKERS)["metadata"]["uid"] != before
    assert read_limits(cluster, WORKERS) == {"nvidia.com/gpu": "2"}
    engine.grow(ref, (), 1)
    assert read_jobs(cluster) == {"train-ab2cd": 1}
    engine.grow(ref, [1], 2)
    assert read_jobs(cluster) == {"train-ab2cd": 2}


def test_pod_of_the_worker_job_is_not_the_lead(engine, cluster, dialect):
    ref = submit(engine, dialect, work=Calls(), nodes=1)
    engine.grow(ref, [1], 2, workers=SIZE)
    main, workers = find_job(cluster, "train-ab2cd"), find_job(cluster, WORKERS)
    pod = make_fake_pod(f"{WORKERS}-0-abcde", 0)
    labels = {**workers["spec"]["template"]["metadata"]["labels"], LABEL_INDEX: "0"}
    pod["metadata"]["labels"] = labels
    owner = {"name": WORKERS, "uid": workers["metadata"]["uid"], "controller": True}
    pod["metadata"]["ownerReferences"] = [owner]
    assert dialect.index_of(pod) == dialect.index_in_name(f"{WORKERS}-0-abcde", ref.job_id) == 1
    assert dialect.owns(pod, main["metadata"]["uid"])
    assert not dialect.owns(pod, "another")
    cluster.put("pods", pod)
    with pytest.raises(ConnectionRefusedError, match="node 0 of train-ab2cd is not running"):
        engine.dial(ref)
    services = {one["metadata"]["name"]: one["spec"] for one in cluster.objects["services"]}
    assert services["train-ab2cd-lead"]["selector"] == {
        names.LABEL_JOB: "train-ab2cd",
        LABEL_INDEX: "0",
        "batch.kubernetes.io/job-name": "train-ab2cd",
    }


def test_queue_admits_all_nodes_or_none(engine, cluster, dialect):
    ref = submit(engine, dialect, work=Calls(), nodes=1, queue="training")
    with pytest.raises(SpecError, match="a queue admits all nodes of a compute together"):
        engine.grow(ref, [1], 2, workers=SIZE)
    assert read_jobs(cluster) == {"train-ab2cd": 1}
