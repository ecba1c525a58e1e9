"""Faults that take a machine away. They need a cluster whose machines this process can switch off.

That is the testbed, a program that switches nodes off and disconnects their network. `WINDLASS_TESTBED` names
it. Otherwise it is expected next to the checkout. Everything is restored after the test.
"""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from chaos_cluster.ground import wait_for

from windlass.kube.client.api import Api
from windlass.kube.client.api_errors import ClusterError
from windlass.kube.objects.fields import condition_of, is_true
from windlass.kube.objects.kinds import NODES

_BESIDE = Path(__file__).parents[3] / "shared" / "testbed" / "testbed"
# Read at import, because tests run without the WINDLASS_ variables of the caller.
PROGRAM = Path(os.environ.get("WINDLASS_TESTBED") or _BESIDE)
_UNDO = {"off": "on", "cut": "heal"}


def find_trouble() -> str:
    """Return why the testbed cannot be used, or "" if it can."""
    if not PROGRAM.exists():
        return "needs the testbed: WINDLASS_TESTBED is not set"
    if _read_kubeconfig() != os.environ.get("KUBECONFIG"):
        return "needs the testbed: KUBECONFIG names another cluster"
    return ""


def _read_kubeconfig() -> str:
    printed = subprocess.run([PROGRAM, "env"], capture_output=True, text=True, check=True).stdout
    found = dict(word.split("=", 1) for word in shlex.split(printed) if "=" in word)
    return found["KUBECONFIG"]


@dataclass(slots=True)
class Testbed:
    """The machines of the cluster."""

    api: Api
    _undo: list[tuple[str, ...]] = field(default_factory=list)

    def off(self, node: str) -> None:
        """Switch a machine off."""
        self._node("off", node)

    def cut(self, node: str) -> None:
        """Disconnect a machine's network. Its processes keep running."""
        self._node("cut", node)

    def heal(self, node: str) -> None:
        self._undo_one(("node", "heal", node))

    def _node(self, what: str, node: str) -> None:
        self._undo.append(("node", _UNDO[what], node))
        _ask("node", what, node)

    def kill_operator(self, *programs: str) -> None:
        for name in programs:
            self._undo.append(("operator", name))
            _kill(name)

    def start_operator(self, *programs: str) -> None:
        for name in programs:
            self._undo_one(("operator", name))

    def kill_api_server(self) -> None:
        self._undo.append(("up",))
        _kill("kube-apiserver")
        wait_for(lambda: not self.answers(), "the API server is gone", 20)

    def start_api_server(self) -> None:
        self._undo.remove(("up",))
        # `up` also waits for kubelets, which may take longer. Only the check below counts.
        subprocess.run([PROGRAM, "up"], capture_output=True, timeout=120)
        wait_for(self.answers, "the API server is back", 60)

    def answers(self) -> bool:
        try:
            self.api.request("GET", "/readyz", timeout_s=2.0)
        except ClusterError:
            return False
        return True

    def _undo_one(self, what: tuple[str, ...]) -> None:
        self._undo.remove(what)
        _ask(*what)

    def put_back(self) -> None:
        for what in reversed(self._undo):
            _ask(*what)
        self._undo.clear()
        wait_for(self._is_whole, "all nodes are ready again", 120)

    def _is_whole(self) -> bool:
        try:
            nodes = self.api.list(NODES)
        except ClusterError:
            return False
        return all(
            is_true(condition_of(node, "Ready")) and not node["spec"].get("taints")
            for node in nodes
        )


def _kill(program: str) -> None:
    state = Path(os.environ.get("TESTBED_STATE") or Path(_read_kubeconfig()).parent)
    kept = (state / "run" / f"{program}.pid").read_text()
    os.kill(int(kept.split()[0]), signal.SIGKILL)  # the start time follows the pid


def _ask(*words: str) -> None:
    done = subprocess.run([PROGRAM, *words], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, f"testbed {' '.join(words)}: {done.stdout}{done.stderr}"


@contextmanager
def open_testbed(api: Api) -> Iterator[Testbed]:
    found = Testbed(api)
    try:
        yield found
    finally:
        found.put_back()
