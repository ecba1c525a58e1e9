"""Output of `windlass engines`: available engines, engines without their operator, and no cluster."""

from __future__ import annotations

from pathlib import Path

import pytest
from kube.api_server import Answer, Seen, write_kubeconfig
from kube.fake_cluster import serving
from kube.storing_cluster import StoringCluster

from windlass.engines.engine_table import renderer_names
from windlass.observe.engine_list import EngineRow, list_engines
from windlass.settings import read_settings

CRD = {
    "metadata": {
        "name": "pytorchjobs.kubeflow.org",
        "labels": {"app.kubernetes.io/version": "1.9.4"},
    }
}


class VersionedCluster(StoringCluster):
    """Cluster that reports its Kubernetes version, and may have the CRD of PyTorchJobs."""

    def next_answer(self, seen: Seen) -> Answer:
        if seen.path == "/version":
            return Answer(body={"gitVersion": "v1.34.4"})
        if seen.path.endswith(CRD["metadata"]["name"]) and self.served:
            return Answer(body=CRD)
        return super().next_answer(seen)


def list_lines(home: Path) -> dict[str, EngineRow]:
    environ = {"WINDLASS_HOME": str(home / "home"), "HOME": str(home)}
    settings = read_settings(flags={"namespace": "space"}, environ=environ, start=home)
    return {row.name: row for row in list_engines(settings)}


def test_operator_engines_are_listed_with_their_release(tmp_path, monkeypatch):
    with serving(VersionedCluster()) as cluster:
        monkeypatch.setenv("KUBECONFIG", str(write_kubeconfig(tmp_path, server=cluster.url)))
        cluster.served = {"kubeflow.org/v1": ["pytorchjobs"]}
        rows = list_lines(tmp_path)
        assert list(rows) == list(renderer_names())
        assert rows["kubernetes"].version == "v1.34.4"
        # listed once, though it brings two kinds
        assert rows["trainjob"].needs == "Kubeflow Trainer 2"
        row = rows["pytorchjob"]
        assert (row.version, row.is_here) == ("kubeflow.org/v1 (release 1.9.4)", True)
        assert "jobs of others" in row.can
        assert "computes" not in row.can
        cluster.served = {}
        row = list_lines(tmp_path)["pytorchjob"]
        assert not row.is_here
        assert row.version == "this cluster does not serve PyTorchJob (kubeflow.org/v1)"
        assert "training-operator" in row.needs


def test_without_a_cluster_the_local_engine_is_listed(tmp_path, monkeypatch):
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "none"))
    rows = list_lines(tmp_path)
    assert [name for name, row in rows.items() if row.is_here] == ["local"]
    assert "no kubeconfig found" in rows["kubernetes"].version


@pytest.mark.parametrize("name", renderer_names())
def test_every_engine_has_capabilities(name, tmp_path, monkeypatch):
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "none"))
    assert list_lines(tmp_path)[name].can
