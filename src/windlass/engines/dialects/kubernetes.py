"""The engine `kubernetes`: an Indexed Job, Services, a Secret and a NetworkPolicy. No CRD, no operator.

The dialect only: what is rendered. Everything that speaks to a cluster is `engines.cluster`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from windlass.engines.cluster import ClusterEngine
from windlass.engines.pyz import build_archive
from windlass.kube.manifests import make_export
from windlass.plan.plan import Plan


class KubernetesEngine(ClusterEngine):
    """Nodes are the pods of an Indexed Job."""

    name = "kubernetes"

    def render(
        self,
        plan: Plan,
        *,
        payload: bytes | None = None,
        bundle: Path | None = None,
        with_keys: bool = False,
    ) -> list[dict[str, Any]]:
        """All that `kubectl apply` needs; with keys it runs, without them it is for reading."""
        # small, since `kubectl apply` keeps a copy of all in an annotation
        files = self.make_files(plan, payload, bundle, agent=build_archive())
        if with_keys:
            files |= self.make_certificates(plan)
        return make_export(plan, files)
