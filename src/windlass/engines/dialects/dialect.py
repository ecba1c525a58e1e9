"""Dialect: everything that is known of one kind of object whose pods are a job's nodes.

A record of data and pure functions; nothing else in the project knows the kind. What speaks to a cluster is
`engines.cluster`, once for all dialects; the dialects themselves are listed in `engines.dialects.table`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any, Protocol

from windlass import names
from windlass.kube.access import Right, make_rights
from windlass.kube.fields import Object, created_s, is_controlled_by, name_of
from windlass.kube.kinds import ObjectKind
from windlass.kube.needs import Need
from windlass.plan.plan import Plan

if TYPE_CHECKING:
    from windlass.kube.blocker import Blocker

Patch = dict[str, Any]


class ObjectPhase(Enum):
    """How far a main object is, as it says itself."""

    HELD = "held"  # it may not have pods yet
    WAITING = "waiting"  # no pod of it has ever run
    STARTED = "started"
    ENDED = "ended"


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectEnd:
    """That a main object is over: whether its agents left in peace, when, and why not in its own words."""

    is_complete: bool
    at_s: float | None = None
    message: str = ""


class ReadHold(Protocol):
    """What holds an object back that may not have pods yet; None if nothing does."""

    def __call__(
        self,
        body: Object,
        /,
        *,
        workloads: Sequence[Object],
        events: Sequence[Object],
        queues: Sequence[str] | None,
    ) -> Blocker | None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Dialect:
    """One kind of object, as an engine.

    The main object is made first and owns all others, so that deleting it deletes them and a submit that
    breaks off leaves nothing. Where it can be `start`ed it is rendered held back, and started when the rest
    is there; where it cannot, its pods wait for the job's Secret, which they mount.
    """

    name: str  # of the engine
    kind: ObjectKind
    can: frozenset[str]
    needs: tuple[Need, ...] = ()  # what not every cluster serves
    more_rights: tuple[Right, ...] = ()  # besides those on the kind itself

    render: Callable[[Plan, Collection[str], str], dict[str, Any]]
    """The main object of a plan, the names of the files in its Secret, and the mark of its submit."""
    start: Patch | None = None  # lets a held one run, and resumes a suspended one
    suspend: Patch | None = None
    resize: Callable[[int], Patch] | None = None
    give_up: Patch | None = None  # has it fail at the next pod that does
    stays_up: bool = False  # it never ends, and starts its containers again

    read_end: Callable[[Object], ObjectEnd | None]
    read_phase: Callable[[Object], ObjectPhase]
    num_pods: Callable[[Object], int]
    read_hold: ReadHold

    lead_labels: Mapping[str, str]  # of the lead's pod alone, among those of its job
    index_of: Callable[[Object], int | None]
    index_in_name: Callable[[str, str], int | None]
    """The index of a pod that is gone, from its name and the job's id; None for another job's."""
    owns: Callable[[Object, str], bool] = is_controlled_by
    """Whether a pod belongs to the main object of that uid: labels may be anybody's."""
    host_name: str = names.POD_HOST  # of a pod, inside the cluster

    @property
    def rights(self) -> tuple[Right, ...]:
        """What a user must be allowed to do in a namespace; the Role is made of it."""
        return make_rights(self.kind, self.more_rights)

    def find_blockers(
        self,
        body: Object,
        pods: Sequence[Object],
        events: Sequence[Object],
        quotas: Sequence[Object] = (),
        *,
        claims: Sequence[Object] = (),
        workloads: Sequence[Object] = (),
        nodes: Sequence[Object] = (),
        queues: Sequence[str] | None = None,
        last_lines: Mapping[str, str] | None = None,
    ) -> list[Blocker]:
        """What is in a job's way now. Only the first three are needed; the rest makes sentences more exact.

        `claims` are the namespace's volume claims, `workloads` Kueue's, `nodes` the cluster's, `queues` the
        names of the namespace's queues if they are known; `last_lines` maps a pod's name to the last line of
        its log.
        """
        if self.read_end(body) is not None:
            return []
        hold = self.read_hold(body, workloads=workloads, events=events, queues=queues)
        if hold is not None:
            return [hold]
        # imported only now: nothing that starts a job needs it
        from windlass.kube.blockers import PodMaker, find_pod_blockers

        maker = PodMaker(
            kind=self.kind.name,
            name=name_of(body),
            created_s=created_s(body),
            num_pods=self.num_pods(body),
        )
        return find_pod_blockers(
            maker,
            pods,
            events,
            quotas,
            index_of=self.index_of,
            claims=claims,
            nodes=nodes,
            last_lines=last_lines or {},
        )
