"""ClusterEngine without a cluster. Each test runs with every dialect.

Most dialects have objects that can be suspended and that end. One has neither.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from cluster_engines import DIALECTS, closing_engine
from kube.api_server import write_kubeconfig
from kube.storing_cluster import StoringCluster, storing_cluster

from windlass.engines.cluster.cluster_engine import ClusterEngine
from windlass.engines.dialects.dialect import Dialect
from windlass.engines.dialects.trainjob import RUNTIME, SHIPPED


@pytest.fixture(params=DIALECTS, ids=lambda dialect: dialect.name)
def dialect(request: pytest.FixtureRequest) -> Dialect:
    chosen: Dialect = request.param
    return chosen


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[StoringCluster]:
    with storing_cluster() as server:
        monkeypatch.setenv("KUBECONFIG", str(write_kubeconfig(tmp_path, server=server.url)))
        server.served = {
            "apps/v1": ["statefulsets", "deployments"],
            "kubeflow.org/v1": ["pytorchjobs"],
            "monarch.pytorch.org/v1alpha1": ["monarchmeshes"],
            "ray.io/v1": ["rayclusters"],
            "trainer.kubeflow.org/v1alpha1": ["trainjobs", "trainingruntimes"],
        }
        about = {**SHIPPED[RUNTIME]["metadata"], "uid": "source"}
        # RayJobs exist only if another tool creates them, which is not the case here
        server.put("rayjobs")
        server.put("trainingruntimes", {**SHIPPED[RUNTIME], "metadata": about})
        yield server


@pytest.fixture
def engine(cluster: StoringCluster, dialect: Dialect, tmp_path: Path) -> Iterator[ClusterEngine]:
    with closing_engine(dialect, tmp_path) as made:
        yield made
