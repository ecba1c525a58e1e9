"""Missing nodes of a compute: the wait for node 0, and the repair of nodes that are lost later.

A compute that is not up yet stays queued while a client waits, and afterwards for its inactivity TTL. After
that it counts as abandoned, and the next client that lists jobs removes it.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable

from windlass.client.compute.nodes.compute_connection import ask_at
from windlass.client.compute.nodes.compute_keywords import speak_python
from windlass.client.compute.nodes.compute_spec import ResolvedCompute
from windlass.client.compute.nodes.find_computes import IdleComputes, remove_by_call
from windlass.client.terminal import print_notice, waiting_line
from windlass.engines.protocol import JobRef
from windlass.errors import EngineError, WindlassError
from windlass.kube.diagnosis.blocker import CONDITION
from windlass.waiting import wait_until
from windlass.wire.states import NodeState
from windlass.wire.status import JobStatus, Phase


class StartWait:
    """Wait for node 0 of a compute. Shows the user what delays it."""

    def __init__(self, name: str, wanted: ResolvedCompute, *, timeout_s: float) -> None:
        self._name = name
        self._wanted = wanted
        self._timeout_s = timeout_s
        self._holders = IdleComputes(wanted.engine, remove_by_call(wanted.settings))

    @property
    def queue_timeout_s(self) -> float | None:
        """Seconds it stays queued after a client starts to wait, or None without an inactivity TTL."""
        ttl_s = self._wanted.ttl_s
        return None if ttl_s is None else self._timeout_s + ttl_s

    def wait_until_up(self, ref: JobRef, *, is_new: bool) -> bool:
        """Wait for node 0 of `ref`. Return False if it is not up before the timeout.

        Raises EngineError if the compute has ended. For a compute that is not new, first extends its waiting
        deadline.
        """
        try:
            if self._is_up(ref):
                return True
            if not is_new and self.queue_timeout_s is not None:
                self._set_deadline(ref, time.time() + self.queue_timeout_s)
            if not wait_until(lambda: self._is_up(ref), timeout_s=self._timeout_s, every_s=0.02):
                return False
            self._set_deadline(ref, None)
            return True
        finally:
            waiting_line.end()

    def _set_deadline(self, ref: JobRef, until_s: float | None) -> None:
        with contextlib.suppress(WindlassError):  # without a deadline it still starts
            self._wanted.engine.set_wait_deadline(ref, until_s)

    def _is_up(self, ref: JobRef) -> bool:
        status = self._wanted.engine.status(ref)
        if status.phase.is_final:
            reason = status.verdict.message if status.verdict else "it ended"
            advice = next((c.hint for c in status.conditions if c.type == CONDITION), "")
            message, hint = map(speak_python, self._holders.add_to(reason, advice, ref))
            why = f"run `windlass why {ref.job_id}`"
            raise EngineError(f"{self._name} did not start: {message}", hint=hint or why)
        if status.phase is Phase.RUNNING:
            return True
        blocked, hint = self.explain(status, ref)
        if blocked:
            waiting_line.show(f"{self._name}: {blocked}", hint)
        return False

    def make_timeout_error(self, ref: JobRef) -> EngineError:
        """Return the error for a node 0 that is not up in time, with the reason and a hint."""
        status = self._wanted.engine.status(ref)
        blocked, advice = self.explain(status, ref)
        message = f"node 0 of {self._name} is not up after {self._timeout_s:g} s (launch_timeout)"
        return EngineError(
            f"{message}: {blocked}" if blocked else message,
            hint=f"{advice or f'run `windlass why {ref.job_id}`'}; it keeps trying{self._for_how_long()}",
        )

    def _for_how_long(self) -> str:
        ttl_s = self._wanted.ttl_s
        return "" if ttl_s is None else f" for {ttl_s:g} s more (inactivity_ttl)"

    def explain(self, status: JobStatus, ref: JobRef) -> tuple[str, str]:
        """Return what blocks its nodes, including the user's idle computes, and a hint."""
        named = self._holders.name_in(status, ref)
        blockers = [c for c in named.conditions if c.type == CONDITION]
        hints = dict.fromkeys(c.hint for c in blockers if c.hint)
        return speak_python("; ".join(c.message for c in blockers)), speak_python("; ".join(hints))


class NodeRepair:
    """Repair of missing nodes: restarts those that a call waits for, and shows what blocks the others."""

    def __init__(self, name: str, wanted: ResolvedCompute, start_wait: StartWait) -> None:
        self._name = name
        self._wanted = wanted
        self._start_wait = start_wait

    def report_wait(
        self, what: str, ref: JobRef, num_nodes: int, restore: Callable[[], None]
    ) -> None:
        """Show the reason why a call waits. Start missing nodes that nothing else starts.

        `restore` requests `num_nodes` again, after another client has removed nodes.
        """
        if not what.startswith("waiting for node"):
            waiting_line.show(f"{self._name}: {what}")
            return
        engine = self._wanted.engine
        with contextlib.suppress(OSError, WindlassError):
            if ask_at(engine, ref).nodes < num_nodes:
                restore()
            if not self._wanted.has_pods:
                self._restart_lost(ref)
        if self._wanted.has_pods:
            blocked, hint = self._start_wait.explain(engine.status(ref), ref)
            waiting_line.show(f"{self._name}: {what}{f': {blocked}' if blocked else ''}", hint)

    def _restart_lost(self, ref: JobRef) -> None:
        """Restart dead local nodes, because no cluster replaces them."""
        info, engine = ask_at(self._wanted.engine, ref), self._wanted.engine
        lost = {node.index for node in engine.status(ref).nodes if node.state == NodeState.LOST}
        missing = [i for i in range(info.nodes) if i not in info.here and i in lost]
        if missing:
            print_notice(
                f"{self._name}: restarting node{'s' * (len(missing) > 1)} {', '.join(map(str, missing))}"
            )
            engine.grow(ref, missing, info.nodes, hidden=self._wanted.hidden)
