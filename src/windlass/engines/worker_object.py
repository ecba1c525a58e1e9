"""More and fewer nodes of a compute; with a size of their own, as a second object or a group of the first.

A second object is made when such a size is first asked for, resized with the compute, and replaced for
another size. The main object owns it. The dialect decides what it is like, or has groups instead (`regroup`).
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable
from dataclasses import dataclass

from windlass import names, records
from windlass.engines.dialects.dialect import Dialect, MakeWorkers, Patch
from windlass.errors import SpecError
from windlass.kube.client.api import Api
from windlass.kube.client.api_errors import Conflict, NotFound
from windlass.kube.objects.fields import Object, annotations_of, uid_of
from windlass.kube.objects.manifests import make_owner, pod_of, read_file_names
from windlass.plan.plan import Plan
from windlass.spec.pod_spec import PodSize


def resize_nodes(
    api: Api, dialect: Dialect, plan: Plan, num_nodes: int, workers: PodSize | None
) -> None:
    """Have so many nodes in all; those from 1 on of a size of their own, or None: as they are."""
    if dialect.regroup is not None:
        name = dialect.make_name(plan.job_id)
        patch = dialect.regroup(plan, api.get(dialect.kind, name), num_nodes, workers)
        api.patch(dialect.kind, name, patch, brief=True)
        return
    if dialect.resize is None:
        raise SpecError(
            f"the nodes of a {dialect.kind.name} cannot become more or fewer",
            hint="end the compute and make another one, or use engine kubernetes",
        )
    if dialect.make_workers is None:
        name = dialect.make_name(plan.job_id)
        api.patch(dialect.kind, name, dialect.resize(num_nodes), brief=True)
    else:
        _TwoObjects(api, dialect, plan, dialect.resize, dialect.make_workers).resize(
            num_nodes, workers
        )


@dataclass(frozen=True, slots=True)
class _TwoObjects:
    """One compute's, whether the second is there or not."""

    api: Api
    dialect: Dialect
    plan: Plan
    make_patch: Callable[[int], Patch]
    make_workers: MakeWorkers

    def resize(self, num_nodes: int, size: PodSize | None) -> None:
        if size is not None and pod_of(self.plan).queue:
            raise SpecError(
                "a queue lets all nodes of a compute in at once, and workers of a size of their own "
                "are a Job beside it",
                hint="give the compute what workers need, and leave out worker_node_options; or queue=",
            )
        there = self._find()
        if there is None and size is None:
            self._patch(self.plan.job_id, num_nodes)
            return
        if there is not None and (num_nodes == 1 or size not in (None, _read_size(there))):
            self.api.delete(self.dialect.kind, self._name, uid=uid_of(there))
            there = None
        self._patch(self.plan.job_id, 1)
        if there is None and size is not None and num_nodes > 1:
            self._make(size, num_nodes - 1)
        elif there is not None:
            self._patch(self._name, num_nodes - 1)

    @property
    def _name(self) -> str:
        return names.WORKERS.format(job_id=self.plan.job_id)

    def _find(self) -> Object | None:
        try:
            return self.api.get(self.dialect.kind, self._name)
        except NotFound:
            return None

    def _patch(self, name: str, num_pods: int) -> None:
        self.api.patch(self.dialect.kind, name, self.make_patch(num_pods), brief=True)

    def _make(self, size: PodSize, num_pods: int) -> None:
        main = self.api.get(self.dialect.kind, self.plan.job_id)
        body = self.make_workers(
            self.plan,
            read_file_names(main["spec"]["template"]["spec"], self.plan.job_id),
            size=size,
            num_nodes=num_pods,
            owner=make_owner(self.dialect.kind, main),
        )
        with contextlib.suppress(Conflict):  # another client has just made it
            self.api.create(self.dialect.kind, body, brief=True)


def _read_size(body: Object) -> PodSize:
    text = annotations_of(body).get(names.ANNOTATION_SIZE, "{}")
    return records.read(PodSize, json.loads(text))
