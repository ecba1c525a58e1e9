"""Names of jobs on a cluster. An object keeps its given name if possible, and no two share one."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
from kube.api_server import write_kubeconfig
from kube.storing_cluster import StoringCluster, storing_cluster

from windlass.errors import WindlassError
from windlass.trainer import TrainerClient


@pytest.fixture
def cluster(tmp_path, monkeypatch) -> Iterator[StoringCluster]:
    project = tmp_path / "project"
    project.mkdir()
    (project / "train.py").touch()
    monkeypatch.chdir(project)
    with storing_cluster() as cluster:
        cluster.objects |= {"jobs": [], "secrets": [], "pods": []}
        monkeypatch.setenv("KUBECONFIG", str(write_kubeconfig(tmp_path, server=cluster.url)))
        monkeypatch.setenv("WINDLASS_IMAGE", "torch:1")
        yield cluster


def test_object_has_the_job_name(cluster):
    job = TrainerClient().create_job("mine", train_func=print)
    assert job.job.id == "mine"
    assert {"jobs/mine", "secrets/mine"} <= set(cluster.names())
    assert TrainerClient().get_job("mine").status == "Created"
    assert [job.name for job in TrainerClient().list_jobs()] == ["mine"]
    with pytest.raises(RuntimeError, match="job mine already exists and is Created"):
        TrainerClient().create_job("mine", train_func=print)


def test_refused_job_leaves_nothing(cluster, home):
    cluster.refused = "secrets"
    with pytest.raises(WindlassError, match="secrets are refused here"):
        TrainerClient().create_job("mine", train_func=print)
    assert cluster.names() == []
    assert list((home / "kubernetes").iterdir()) == []
    cluster.refused = ""
    assert TrainerClient().create_job("mine", train_func=print).job.id == "mine"


def test_name_freed_in_the_cluster_can_be_reused(cluster):
    TrainerClient().create_job("mine", train_func=print)
    for plural in list(cluster.objects):
        cluster.put(plural)
    with pytest.raises(RuntimeError, match="job 'mine' not found"):
        TrainerClient().get_job_status("mine")
    assert TrainerClient().create_job("mine", train_func=print).job.id == "mine"


def test_job_of_equal_name_elsewhere_is_another_job(cluster, home):
    folder = home / "kubernetes" / "mine"
    folder.mkdir(parents=True)
    place = {"context": "here", "namespace": "another"}
    (folder / "where.json").write_text(json.dumps(place))
    with pytest.raises(RuntimeError, match="job 'mine' not found"):
        TrainerClient().get_job_status("mine")
    client = TrainerClient()
    job = client.create_job("mine", train_func=print)
    assert job.name == "mine"
    assert job.job.id.startswith("mine-")
    assert (folder / "where.json").exists()
    other = TrainerClient()
    assert other._names.find("mine").job.ref == job.job.ref
    assert [known.name for known in other.list_jobs()] == ["mine"]
    with pytest.raises(RuntimeError, match="job mine already exists"):
        other.create_job("mine", train_func=print)
