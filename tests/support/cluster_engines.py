"""A ClusterEngine of any dialect in front of a storing API server, and helpers to inspect its objects."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from kube.fake_cluster import make_fake_pod
from kube.plans import make_pod_plan
from kube.storing_cluster import StoringCluster
from waits import wait_for
from windlass_statefulset import STATEFUL_SET

from windlass import names
from windlass.engines.cluster.cluster_engine import ClusterEngine
from windlass.engines.dialects.dialect import Dialect
from windlass.engines.dialects.kubernetes import KUBERNETES
from windlass.engines.dialects.monarchmesh import MONARCHMESH
from windlass.engines.dialects.pytorchjob import PYTORCHJOB
from windlass.engines.dialects.raycluster import RAYCLUSTER
from windlass.engines.dialects.trainjob import LABEL_JOBSET, RUNTIME, TRAINJOB
from windlass.engines.protocol import JobRef
from windlass.plan.plan import Plan
from windlass.settings import read_settings

DIALECTS = [KUBERNETES, MONARCHMESH, PYTORCHJOB, RAYCLUSTER, TRAINJOB, STATEFUL_SET]
SOURCE = f"trainingruntimes/{RUNTIME}"  # exists before any job
KEEPING_COMPUTES = [dialect for dialect in DIALECTS if "computes" in dialect.can]


class closing_engine:  # noqa: N801 - used like contextlib.closing
    """Context manager for an engine whose threads end with the test."""

    def __init__(self, dialect: Dialect, home: Path) -> None:
        environ = {"WINDLASS_HOME": str(home / "home"), "HOME": str(home)}
        self._engine = ClusterEngine(dialect, read_settings(flags={}, environ=environ, start=home))

    def __enter__(self) -> ClusterEngine:
        return self._engine

    def __exit__(self, *_: object) -> None:
        for view in self._engine._views.values():
            view.close()


def make_job_plan(dialect: Dialect, **asked: Any) -> Plan:
    plan = make_pod_plan(detach=True, **{"nodes": 2, **asked})
    return replace(plan, engine=dialect.name, created_at_s=time.time())


def submit(engine: ClusterEngine, dialect: Dialect, **asked: Any) -> JobRef:
    return engine.submit(make_job_plan(dialect, **asked), b"payload")


def writes(cluster: StoringCluster) -> list[Any]:
    return [seen for seen in cluster.seen if seen.method != "GET"]


def main_of(cluster: StoringCluster, dialect: Dialect) -> dict[str, Any]:
    (body,) = cluster.objects[dialect.kind.plural]
    return body


def make_pod(cluster: StoringCluster, dialect: Dialect, index: int = 0) -> dict[str, Any]:
    """Return a pending pod of the existing job, not yet assigned to a node."""
    main = main_of(cluster, dialect)
    pod = make_fake_pod(f"{main['metadata']['name']}-{index}", index)
    marks = {
        label: str(index) if value == "0" else value for label, value in dialect.lead_labels.items()
    }
    made_by = dict.fromkeys((LABEL_JOBSET, names.LABEL_MESH), main["metadata"]["name"])
    pod["metadata"]["labels"] = {**main["metadata"]["labels"], **made_by, **marks}
    owner = {"uid": main["metadata"]["uid"], "name": dialect.find_pod_maker(main)[1]}
    pod["metadata"]["ownerReferences"][0] |= owner
    pod["status"] = {"phase": "Pending"}
    return pod


def wait_for_status(engine: ClusterEngine, ref: JobRef, is_so: Any, what: str) -> Any:
    wait_for(lambda: is_so(engine.status(ref)), what)
    return engine.status(ref)
