"""Cases on Kubernetes: two kept pods on two hosts, and eight pods. The user has only the documented Role.

Each contestant has its own namespace. That of the StatefulSets is cleared after each run.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import kubernetes_contestants as fresh
from kubernetes_place import open_place
from warm_case import Line
from warm_local import MONARCH, time_argument, time_empty
from warm_peer import Peer, Start
from warm_pods import (
    MONARCH_PORT,
    Kubectl,
    forwarded,
    make_user,
    start_echo,
    start_monarch,
)
from warm_setup import (
    FORKS,
    INSTALL,
    KEPT,
    Contestant,
    Setup,
    log,
    open_all,
    ours,
    time_edits,
)

from windlass.kube.client.api import Api

STATEFUL_SET, ECHO = "StatefulSet + torchrun", "bare port-forward"
_NO_IMAGE = "no image: pass one with torchmonarch with `--monarch-image`"


@dataclass(frozen=True, slots=True, kw_only=True)
class Grounds:
    """The namespaces, with the credentials for each."""

    api: Api
    namespace: str
    kubeconfig: Path  # path of the user's kubeconfig
    kubectl: Kubectl  # kubectl as the user, in the namespace of Windlass
    peers: Kubectl  # kubectl as the admin, in the peers' namespace

    def ours(self, setup: Setup, *, ranks: int, kept: bool = False) -> Start:
        where = {"engine": "kubernetes", "namespace": self.namespace, "image": setup.image}
        return ours(
            setup, ranks=ranks, nodes=ranks, kept=kept, KUBECONFIG=str(self.kubeconfig), **where
        )


@contextmanager
def open_grounds(setup: Setup, api: Api) -> Iterator[Grounds]:
    """Yield two new namespaces, and delete them afterwards."""
    name, peers = setup.namespace, f"{setup.namespace}-peers"
    with open_place(api, name), open_place(api, peers):
        admin = Kubectl(namespace=name, context=setup.context)
        path = make_user(admin, setup.folder)
        yield Grounds(
            api=api,
            namespace=name,
            kubeconfig=path,
            kubectl=Kubectl(namespace=name, kubeconfig=path),
            peers=Kubectl(namespace=peers, context=setup.context),
        )


class FreshStatefulSet:
    """A new StatefulSet with torchrun for each edit. It includes the edit, and its export is not timed."""

    name = STATEFUL_SET

    def __init__(self, setup: fresh.Setup) -> None:
        self._setup = setup
        self._manifest = fresh.export_stateful_set(setup)

    def edit(self, do: str, number: int) -> float:
        num = self._setup.num_ranks
        return fresh.measure_applied(self._setup, self.name, self._manifest, num=num).seconds


def make_fresh(stack: ExitStack, setup: Setup, api: Api) -> FreshStatefulSet:
    place = stack.enter_context(open_place(api, f"{setup.namespace}-fresh"))
    project = setup.folder / "fresh"
    project.mkdir()
    fresh.make_project(project)
    return FreshStatefulSet(
        fresh.Setup(
            place=place,
            image=setup.image,
            nodes=2,
            procs=1,
            project=project,
            windlass=setup.torchrun.with_name("windlass"),
            home=setup.folder / "home",
        )
    )


def open_monarch(stack: ExitStack, setup: Setup, grounds: Grounds) -> list[Start]:
    """Start Monarch's workers in two pods with a port-forward, or return [] if it is not installed."""
    if not (setup.pythons["monarch"] and setup.monarch_image):
        return []
    workers = start_monarch(grounds.peers, image=setup.monarch_image, num=2)
    port = stack.enter_context(forwarded(grounds.peers, "monarch-0", MONARCH_PORT))
    args = ["--ranks", "2", "--workers", ",".join(workers), "--attach", f"tcp://127.0.0.1:{port}"]
    return [setup.start(MONARCH, "warm_monarch.py", args)]


def missing_monarch(setup: Setup, case: str) -> list[Line]:
    if setup.pythons["monarch"] and setup.monarch_image:
        return []
    note = _NO_IMAGE if setup.pythons["monarch"] else INSTALL["monarch"]
    return [Line(case=case, who=MONARCH, note=note)]


def measure_pods(setup: Setup, grounds: Grounds, only: set[str]) -> list[Line]:
    """Measure edits, empty calls and large arguments in two kept pods."""
    lines = []
    with ExitStack() as stack:
        monarch = open_monarch(stack, setup, grounds)
        starts = [grounds.ours(setup, ranks=2), grounds.ours(setup, ranks=2, kept=True), *monarch]
        contestants = open_all(stack, starts)
        if "pods-edit" in only:
            stateful_set = make_fresh(stack, setup, grounds.api)
            lines += _measure_edit(setup, [*contestants, stateful_set])
        if "pods-empty" in only:
            start_echo(grounds.peers, image=setup.image)
            port = stack.enter_context(forwarded(grounds.peers, "echo-0", 7000))
            echo = setup.start(ECHO, "warm_echo.py", ["--port", str(port)])
            lines += _measure_empty(setup, [*contestants, *open_all(stack, [echo])])
        if "pods-arguments" in only:
            kept = [peer for peer in contestants if peer.name != FORKS]
            for num_bytes in (10 << 20, setup.big_bytes):
                lines += time_argument(setup, kept, num_bytes, "to two pods")
    return lines


def _measure_edit(setup: Setup, contestants: list[Contestant]) -> list[Line]:
    case = "edit to first all-reduce, two kept pods"
    found = time_edits(setup, contestants, case, "first_all_reduce")
    lines = [
        Line(case=case, who=FORKS, seconds=found[FORKS]),
        Line(case=case, who=STATEFUL_SET, seconds=found[STATEFUL_SET], against=FORKS, times=10.0),
        Line(case=case, who=KEPT, seconds=found[KEPT]),
    ]
    if MONARCH in found:
        lines.append(Line(case=case, who=MONARCH, seconds=found[MONARCH], against=KEPT))
    return [*lines, *missing_monarch(setup, case)]


def _measure_empty(setup: Setup, contestants: list[Peer]) -> list[Line]:
    case = "empty call, two pods, through port-forward"
    found = time_empty(setup, contestants, case)
    lines = [
        Line(case=case, who=KEPT, seconds=found[KEPT], limit_s=0.002),
        Line(case=case, who=FORKS, seconds=found[FORKS]),
        Line(case=case, who=ECHO, seconds=found[ECHO], against=KEPT),
    ]
    if MONARCH in found:
        lines.append(Line(case=case, who=MONARCH, seconds=found[MONARCH], against=KEPT, times=1.0))
    return [*lines, *missing_monarch(setup, case)]


def measure_pod_spread(setup: Setup, grounds: Grounds) -> list[Line]:
    """Measure from the edit of one file until a rank in each of eight pods runs it."""
    case = "edit to running ranks, 8 pods"
    with ExitStack() as stack:
        contestants = open_all(stack, [grounds.ours(setup, ranks=8)])
        log(f"{len(grounds.kubectl.run('get', 'pods', '-o', 'name').split())} pods are running")
        found = time_edits(setup, contestants, case, "running")
    return [Line(case=case, who=FORKS, seconds=found[FORKS], limit_s=1.0)]
