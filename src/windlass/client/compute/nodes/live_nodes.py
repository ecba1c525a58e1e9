"""Live nodes of a compute: found or started, scaled, and restarted by the next call.

`LiveNodes` combines `NodeDiscovery`, `LeadConnections` and `NodeRepair`.

Several clients may scale a compute at the same time. The lead keeps the number of nodes, and the engine
starts and ends them. After a client has passed its number to the engine, it asks the lead again. If the
lead's number has changed, the client passes that number to the engine.
"""

from __future__ import annotations

import os
import threading
import time
import weakref
from collections.abc import Callable, Sequence

from windlass.client.compute.nodes.compute_connection import Connection, LeadConnections, expect
from windlass.client.compute.nodes.compute_owners import split_owner
from windlass.client.compute.nodes.compute_spec import ResolvedCompute
from windlass.client.compute.nodes.distribution import Distribution
from windlass.client.compute.nodes.find_computes import NodeDiscovery, end_job
from windlass.client.compute.nodes.node_repair import NodeRepair, StartWait
from windlass.client.jobs.run import describe_pretence
from windlass.client.terminal import print_notice, waiting_line
from windlass.engines.protocol import JobRef
from windlass.errors import EngineError, JobNotFound, ProtocolError, WindlassError, count_noun
from windlass.spec.pod_spec import PodSize
from windlass.wire.blocking_link import ConnectionBroken, Received
from windlass.wire.message import Message
from windlass.wire.messages.calls import AskInfo, ComputeInfo, ConfigureCompute, ScaleNodes
from windlass.wire.payloads import remove_spills

LAUNCH_TIMEOUT_S = 900.0
_MAX_TURNS = 100

AskLead = Callable[[int | None], int]  # returns the number of nodes, and sets it first if given one
Grow = Callable[[Sequence[int], int], None]  # takes the new indexes, and the number of all nodes
_RETRY_S = 0.1


def scale_to(ask_lead: AskLead, grow: Grow, num_nodes: int) -> tuple[int, int]:
    """Scale to `num_nodes`. Return the numbers before and after, which other clients may change."""
    before = ask_lead(num_nodes)
    new: Sequence[int] = range(before, num_nodes)
    for _ in range(_MAX_TURNS):
        grow(new, num_nodes)
        requested = ask_lead(None)
        if requested == num_nodes:
            return before, requested
        new, num_nodes = (
            (),
            requested,
        )  # another client changed the number, and starts the new nodes
    raise EngineError(
        f"other clients keep changing the number of nodes: it is {requested} now",
        hint="run `windlass compute ls` to see it",
    )


_all: weakref.WeakSet[LiveNodes] = weakref.WeakSet()


class LiveNodes:
    """Nodes of one compute, found by its name."""

    def __init__(
        self, name: str, wanted: ResolvedCompute, *, launch_timeout_s: float = LAUNCH_TIMEOUT_S
    ) -> None:
        self.qualified_name = name  # may be owner/name
        self.name = split_owner(name)[1]
        self.wanted = wanted
        self.launch_timeout_s = launch_timeout_s
        self.is_remote = wanted.has_pods
        self.ref: JobRef | None = None
        self.num_nodes = 0
        self.connections = LeadConnections(wanted.engine)
        self._discovery = NodeDiscovery(wanted, name)
        self._start_wait = StartWait(self.name, wanted, timeout_s=launch_timeout_s)
        self._repair = NodeRepair(self.name, wanted, self._start_wait)
        self._lock = threading.RLock()
        self._preload: tuple[str, ...] = ()
        self._min_nodes = 0  # calls may start with this many nodes (0: all)
        self._workers: PodSize | None = None  # size of nodes 1 and up (None: unchanged)
        self._is_adopted = False
        _all.add(self)

    def detach_after_fork(self) -> None:
        """Drop the connections in a forked child without closing the parent's."""
        self._lock = threading.RLock()
        self.connections.leave_to_parent()

    @property
    def spill(self) -> str:
        """Folder for large payloads on this machine."""
        return self.connections.spill

    # -- starting ------------------------------------------------------------------------------

    def bring_up(self, spread: Distribution, preload: tuple[str, ...] = ()) -> None:
        """Use live nodes or start new ones, so that at least the wanted number is running or starting."""
        num_nodes, workers = spread.workers, spread.worker_size
        with self._lock:
            can_size = "worker_sizes" in self.wanted.engine.can
            is_resized = can_size and workers not in (None, self._workers)
            self._workers = workers if is_resized else self._workers
            self._min_nodes = spread.min_workers
            self._preload = preload or self._preload
            if self.ref is None:
                self.num_nodes = 0
                with self._discovery.lock_name():
                    if not self._use_live():
                        self._start(max(num_nodes, 1))
                        is_resized = False
            if num_nodes > self.num_nodes or (is_resized and num_nodes > 1):
                self.scale(max(num_nodes, self.num_nodes), at_least=True)

    def _use_live(self) -> bool:
        """Use live nodes with this name. Return False if there are none."""
        live = self._discovery.find()
        if live is None:
            return False
        ref, is_own = live
        if not is_own:
            print_notice(f"{self.qualified_name}: using its live nodes as they are ({ref})")
            self.adopt(ref)
            return True
        self._settle(ref)
        self._configure(ref)
        print_notice(f"{self.name}: using its live nodes ({ref})")
        return True

    def adopt(self, ref: JobRef) -> None:
        """Use these nodes as they are. They cannot be restarted, because their spec is unknown."""
        self._is_adopted = True
        self._settle(ref)

    def _start(self, num_nodes: int) -> None:
        wanted = self.wanted
        wanted.ensure_volumes(num_nodes)
        fewest = min(self._min_nodes, num_nodes)
        plan = wanted.make_plan(
            self.name,
            num_nodes,
            self._preload,
            min_nodes=fewest,
            place_s=self._start_wait.queue_timeout_s,
            workers=self._workers if num_nodes > 1 else None,
        )
        word = count_noun(num_nodes, "node")
        print_notice(f"{self.name}: starting {word} ({wanted.where.engine}: {wanted.where.why})")
        for note in describe_pretence(wanted.settings):
            print_notice(f"{self.name}: {note}")
        ref = wanted.engine.submit(plan, None, None, hidden=wanted.hidden)
        if self._workers and num_nodes > 1:
            wanted.engine.grow(ref, (), num_nodes, workers=self._workers)
        self.num_nodes = num_nodes
        self._settle(ref, is_new=True)

    def _settle(self, ref: JobRef, *, is_new: bool = False) -> None:
        """Wait for the lead, and keep a connection to it for calls."""
        self.ref = ref
        try:
            is_up = self._start_wait.wait_until_up(ref, is_new=is_new)
        except WindlassError:
            self.ref = None
            raise
        if not is_up:
            raise self._start_wait.make_timeout_error(ref)
        connection, info = self.connections.open(ref)
        self.num_nodes = info.nodes
        self.connections.give(connection)
        self.wanted.engine.let_go(ref)

    # -- changing in place ---------------------------------------------------------------------

    def _configure(self, ref: JobRef) -> None:
        """Send live nodes the settings that may have changed: variables, steps, secrets, time to live."""
        wanted = self.wanted
        env = wanted.compare_env(wanted.engine.plan(ref).env)
        hidden, ttl_s = dict(wanted.hidden), wanted.ttl_s
        self.ask(ConfigureCompute(env=env, steps=list(wanted.steps), ttl_s=ttl_s, hidden=hidden))

    def scale(self, num_nodes: int, *, at_least: bool = False) -> None:
        """Scale to `num_nodes`, or to at least that many. Node 0 always stays."""
        ref, engine = self._here(), self.wanted.engine
        for volume in self.wanted.volumes if self.is_remote else ():
            volume.check_nodes(num_nodes)

        def ask_lead(requested: int | None) -> int:
            if requested is None:
                return expect(ComputeInfo, self.ask(AskInfo())).nodes
            order = ScaleNodes(nodes=requested, at_least=at_least)
            return expect(ComputeInfo, self.ask(order)).before or 0

        def grow(new: Sequence[int], in_all: int) -> None:
            hidden, workers = self.wanted.hidden, self._workers
            engine.grow(ref, list(new), in_all, hidden=hidden, workers=workers)

        before, there = scale_to(ask_lead, grow, num_nodes)
        self.num_nodes = max(there, num_nodes) if at_least else there
        if before != there:
            print_notice(f"{self.name}: {before} -> {there} nodes; node 0 stays")
        if there != num_nodes and not at_least:
            print_notice(f"{self.name}: another client requested {there} nodes at the same time")

    def _here(self) -> JobRef:
        if self.ref is None:
            raise JobNotFound(f"{self.name} has no nodes", hint="call it, or .to(compute) again")
        return self.ref

    # -- messages ------------------------------------------------------------------------------

    def ask(self, question: Message, *, timeout_s: float | None = None) -> Received:
        """Ask the lead and return its answer. `timeout_s` limits only the time to reach it."""
        connection = self.take_connection(timeout_s)
        answer = connection.ask(question)
        self.return_connection(connection)
        return answer

    def notify(self, message: Message) -> None:
        """Send a message to the lead, if it is alive. Starts no nodes."""
        if self.ref is not None:
            self.connections.notify(self.ref, message)

    def return_connection(self, connection: Connection) -> None:
        self.connections.give(connection)

    def take_connection(self, timeout_s: float | None) -> Connection:
        """Return a connection to the lead. Restarts lost nodes."""
        limit_s = self.launch_timeout_s if timeout_s is None else timeout_s
        deadline = time.monotonic() + limit_s
        while True:
            if (connection := self.connections.take()) is not None:
                return connection
            with self._lock:
                if self.ref is None:  # this process has torn the compute down
                    self.bring_up(Distribution(workers=max(self.num_nodes, 1)))
                    continue
            try:
                connection = self.connections.open(self._here())[0]
                waiting_line.end()
                return connection
            except (OSError, ConnectionBroken, ProtocolError) as error:
                trouble: Exception = error
            with self._lock:
                if self._has_ended():
                    self._start_again()
                    continue
            if time.monotonic() > deadline:
                raise EngineError(
                    f"node 0 of {self.name} could not be reached for {limit_s:g} s: {trouble}",
                    hint=f"run `windlass why {self._here().job_id}`",
                ) from trouble
            waiting_line.show(f"{self.name}: waiting for node 0 ({trouble})")
            time.sleep(_RETRY_S)

    def _has_ended(self) -> bool:
        try:
            return self.wanted.engine.status(self._here()).phase.is_final
        except JobNotFound:
            return True

    def _start_again(self) -> None:
        if self._is_adopted:
            raise JobNotFound(
                f"the nodes of {self.name} are gone", hint="deploy it again, or .to(compute) again"
            )
        print_notice(f"{self.name}: its nodes are gone, starting new ones")
        if not self.is_remote and self.ref is not None:
            remove_spills(self.ref.job_id)  # a lead that was killed could not remove them
        num_nodes, self.ref, self.num_nodes = self.num_nodes, None, 0
        self.connections.forget_lead()
        self._start(num_nodes)

    def report_wait(self, what: str) -> None:
        """Show the reason why a call waits. Start missing nodes that nothing else starts."""
        num_nodes = self.num_nodes
        self._repair.report_wait(
            what, self._here(), num_nodes, lambda: self.scale(num_nodes, at_least=True)
        )

    # -- ending --------------------------------------------------------------------------------

    def teardown(self) -> None:
        """End the nodes, whichever process started them."""
        with self._lock:
            self.connections.close()
            for ref in [self.ref] if self.ref else self._discovery.list_refs():
                end_job(self.wanted, ref)
                self.wanted.engine.let_go(ref)
            self.ref = None  # the next call starts `num_nodes` nodes again
            self.connections.forget_lead()


def _detach_all() -> None:
    for nodes in _all:
        nodes.detach_after_fork()


os.register_at_fork(after_in_child=_detach_all)
