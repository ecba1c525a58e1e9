"""Live nodes of a compute in this process: found or started, scaled, connected to, and replaced.

Connections to the lead are kept and reused, one for each call in flight. A compute that ended is started
again by the next call, which prints that.

Several clients may scale one compute at a time. The lead counts its nodes and the engine starts and ends
them. A client that gave the engine a number asks the lead once more, and passes on the lead's number if it
differs.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from windlass import records
from windlass.client.compute.caller_output import say, waiting_line
from windlass.client.compute.nodes.compute_connection import Connection, ask_at, ask_info, expect
from windlass.client.compute.nodes.compute_owners import is_own, split_owner
from windlass.client.compute.nodes.compute_spec import Wanted, describe_change, forget_changing
from windlass.client.compute.nodes.distribution import Distribution
from windlass.client.compute.nodes.find_computes import end_job, find_meant
from windlass.client.compute.nodes.start_wait import StartWait
from windlass.client.jobs.run import describe_pretence
from windlass.engines.protocol import JobRef
from windlass.errors import EngineError, JobNotFound, ProtocolError, SpecError, WindlassError
from windlass.kube.objects.naming import object_name
from windlass.plan.plan import Plan
from windlass.spec.pod_spec import PodSize
from windlass.spec.work import Calls
from windlass.trusted import make_own
from windlass.wire.blocking_link import LineBroke, Received
from windlass.wire.message import Message
from windlass.wire.messages.calls import AskInfo, ComputeInfo, ConfigureCompute, ScaleNodes
from windlass.wire.payloads import remove_spills
from windlass.wire.states import NodeState

_MAX_TURNS = 100

AskLead = Callable[[int | None], int]  # how many it has; a number says how many from now on
Grow = Callable[[Sequence[int], int], None]  # which nodes are new, and how many there are in all
_RETRY_S = 0.1
_TELL_S = 5.0


def scale_to(ask_lead: AskLead, grow: Grow, num_nodes: int) -> tuple[int, int]:
    """Ask for so many nodes; how many there were and how many there are: others may have asked since."""
    before = ask_lead(num_nodes)
    new: Sequence[int] = range(before, num_nodes)
    for _ in range(_MAX_TURNS):
        grow(new, num_nodes)
        told = ask_lead(None)
        if told == num_nodes:
            return before, told
        new, num_nodes = (), told  # the client that asked for more starts those
    raise EngineError(
        f"others change the number of nodes all the time: it is {told} now",
        hint="windlass compute ls shows it",
    )


_all: weakref.WeakSet[LiveNodes] = weakref.WeakSet()
_left: list[Connection] = []  # of the process that this one was forked from


class LiveNodes:
    """One compute's nodes, by its name."""

    def __init__(self, name: str, wanted: Wanted, *, launch_timeout_s: float) -> None:
        self.asked_as = name  # which may say whose it is
        self.name = split_owner(name)[1]
        self.wanted = wanted
        self.launch_timeout_s = launch_timeout_s
        self.is_remote = wanted.has_pods
        self.spill = ""
        self.ref: JobRef | None = None
        self.num_nodes = 0
        self.python = ""  # of the nodes, such as 3.11
        self.has: dict[str, str] = {}  # digests of projects that the lead has
        self._idle: list[Connection] = []
        self._lock = threading.RLock()
        self._preload: tuple[str, ...] = ()
        self._min_nodes = 0  # with so many calls may start; 0: with all
        self._workers: PodSize | None = None  # of nodes from 1 on; None: as they are
        self._is_adopted = False
        self._start_wait = StartWait(self.name, wanted, timeout_s=launch_timeout_s)
        _all.add(self)

    def __del__(self) -> None:
        self._hang_up()

    def part(self) -> None:
        """In a fork: leave the connections to the process that made them, untouched."""
        self._lock = threading.RLock()
        _left.extend(self._idle)
        self._idle = []

    def _hang_up(self) -> None:
        for connection in self._idle:
            connection.close()
        self._idle.clear()

    # -- being there ---------------------------------------------------------------------------

    def bring_up(self, spread: Distribution, preload: tuple[str, ...] = ()) -> None:
        """Have at least so many nodes on their way; those that are live are used."""
        num_nodes, workers = spread.workers, spread.worker_size
        with self._lock:
            can_size = "worker_sizes" in self.wanted.engine.can
            is_resized = can_size and workers not in (None, self._workers)
            self._workers = workers if is_resized else self._workers
            self._min_nodes = spread.min_workers
            self._preload = preload or self._preload
            if self.ref is None:
                self.num_nodes = 0
                with self._alone():
                    if not self._find():
                        self._start(max(num_nodes, 1))
                        is_resized = False
            if num_nodes > self.num_nodes or (is_resized and num_nodes > 1):
                self.scale(max(num_nodes, self.num_nodes), at_least=True)

    @contextlib.contextmanager
    def _alone(self) -> Iterator[None]:
        """Of several processes that start one compute at a time, the others find what the first started."""
        home = Path(str(self.wanted.settings.value("home"))).expanduser()
        make_own(home / "locks", below=home)
        with (home / "locks" / object_name(self.name, 60)).open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield

    def _find(self) -> bool:
        """Use nodes of this name that live already: one's own, or those of an owner who was named."""
        for ref, plan in find_meant(self.wanted, self.asked_as):
            if not is_own(self.wanted.engine, ref, plan):
                say(f"{self.asked_as}: using its live nodes as they are ({ref})")
                self.adopt(ref)
                return True
            if self._take_over(ref, plan):
                return True
        return False

    def adopt(self, ref: JobRef) -> None:
        """Use these nodes as they are; others cannot be started, since what they are like is not known."""
        self._is_adopted = True
        self._settle(ref)

    def _take_over(self, ref: JobRef, plan: Plan) -> bool:
        if isinstance(plan.work, Calls) and plan.work.fixed == self.wanted.digest:
            self._settle(ref)
            self._configure()
            say(f"{self.name}: using its live nodes ({ref})")
            return True
        self._replace(ref, plan)
        return False

    def _replace(self, ref: JobRef, plan: Plan) -> None:
        """Nodes that are not what is wanted any more make room, unless they are at work."""
        there = {} if plan.pod is None else forget_changing(records.to_json(plan.pod))
        there |= plan.work.about if isinstance(plan.work, Calls) else {}
        change = describe_change(there, self.wanted.fixed)
        if self._is_at_work(ref):
            raise SpecError(
                f"{self.name} is at work, and its nodes would have to be replaced ({change})",
                hint=f"wait for its calls, or windlass compute rm {self.name}, or another name=",
            )
        say(f"{self.name}: its nodes are replaced, since they cannot change in place: {change}")
        end_job(self.wanted, ref)

    def _is_at_work(self, ref: JobRef) -> bool:
        """Whether calls run or wait there; nodes that do not answer have none to lose."""
        try:
            calls = ask_at(self.wanted.engine, ref).calls
        except (OSError, WindlassError):
            return False
        return not all(call.state.is_final for call in calls)

    def _start(self, num_nodes: int) -> None:
        wanted = self.wanted
        wanted.ensure_volumes(num_nodes)
        fewest = min(self._min_nodes, num_nodes)
        plan = wanted.make_plan(
            self.name,
            num_nodes,
            self._preload,
            min_nodes=fewest,
            place_s=self._start_wait.place_s,
            workers=self._workers if num_nodes > 1 else None,
        )
        word = f"{num_nodes} node{'s' * (num_nodes > 1)}"
        say(f"{self.name}: starting {word} ({wanted.where.engine}: {wanted.where.why})")
        for note in describe_pretence(wanted.settings):
            say(f"{self.name}: {note}")
        ref = wanted.engine.submit(plan, None, None, hidden=wanted.hidden)
        if self._workers and num_nodes > 1:
            wanted.engine.grow(ref, (), num_nodes, workers=self._workers)
        self.num_nodes = num_nodes
        self._settle(ref, is_new=True)

    def _settle(self, ref: JobRef, *, is_new: bool = False) -> None:
        """Wait for the lead; afterwards calls reach it without asking anybody where it is."""
        self.ref = ref
        try:
            is_up = self._start_wait.until_up(ref, is_new=is_new)
        except WindlassError:
            self.ref = None
            raise
        if not is_up:
            raise self._start_wait.make_late(ref)
        connection, info = self._connect()
        self.num_nodes = info.nodes
        self.give_talk(connection)
        self.wanted.engine.let_go(ref)

    # -- changing in place ---------------------------------------------------------------------

    def _configure(self) -> None:
        """Tell live nodes what may have changed: variables, steps, secrets, how long they stay."""
        wanted = self.wanted
        env = wanted.compare_env(wanted.engine.plan(self._here()).env)
        hidden, ttl_s = dict(wanted.hidden), wanted.ttl_s
        self.ask(ConfigureCompute(env=env, steps=list(wanted.steps), ttl_s=ttl_s, hidden=hidden))

    def scale(self, num_nodes: int, *, at_least: bool = False) -> None:
        """So many nodes, or no fewer; node 0 stays in any case."""
        ref, engine = self._here(), self.wanted.engine
        for volume in self.wanted.volumes if self.is_remote else ():
            volume.check_nodes(num_nodes)

        def ask_lead(asked: int | None) -> int:
            if asked is None:
                return expect(ComputeInfo, self.ask(AskInfo())).nodes
            order = ScaleNodes(nodes=asked, at_least=at_least)
            return expect(ComputeInfo, self.ask(order)).before or 0

        def grow(new: Sequence[int], in_all: int) -> None:
            hidden, workers = self.wanted.hidden, self._workers
            engine.grow(ref, list(new), in_all, hidden=hidden, workers=workers)

        before, there = scale_to(ask_lead, grow, num_nodes)
        self.num_nodes = max(there, num_nodes) if at_least else there
        if before != there:
            say(f"{self.name}: {before} -> {there} nodes; node 0 stays")
        if there != num_nodes and not at_least:
            say(f"{self.name}: somebody else asked for {there} nodes at the same time")

    def _here(self) -> JobRef:
        if self.ref is None:
            raise JobNotFound(f"{self.name} has no nodes", hint="call it, or .to(compute) again")
        return self.ref

    # -- talking -------------------------------------------------------------------------------

    def ask(self, question: Message, *, timeout_s: float | None = None) -> Received:
        """One question to the lead, one answer; `timeout_s` is for reaching it."""
        connection = self.take_talk(timeout_s)
        answer = connection.ask(question)
        self.give_talk(connection)
        return answer

    def tell(self, message: Message) -> None:
        """Say something to the lead, if it lives: nothing is started to hear it."""
        if self.ref is None or sys.is_finalizing():
            return
        with contextlib.suppress(OSError, WindlassError):
            line = Connection(self.wanted.engine.dial(self.ref), self.ref.job_id)
            with contextlib.closing(line) as connection:
                connection.ask(message, timeout_s=_TELL_S)

    def take_talk(self, timeout_s: float | None) -> Connection:
        """A connection to the lead; nodes that are gone are started anew."""
        while True:
            with self._lock:
                if not self._idle:
                    break
                connection = self._idle.pop()
            if connection.is_alive():
                return connection
            connection.close()
        return self._reconnect(timeout_s)

    def give_talk(self, connection: Connection) -> None:
        connection.used_s = time.monotonic()
        self._idle.append(connection)

    def _connect(self) -> tuple[Connection, ComputeInfo]:
        """A new connection, and what the lead says of itself."""
        ref = self._here()
        connection = Connection(self.wanted.engine.dial(ref), ref.job_id)
        info = ask_info(connection)
        self.spill, self.python = info.spill, info.python
        self.has.update(info.projects)
        return connection, info

    def _reconnect(self, timeout_s: float | None) -> Connection:
        limit_s = self.launch_timeout_s if timeout_s is None else timeout_s
        deadline = time.monotonic() + limit_s
        while True:
            with self._lock:
                if self.ref is None:  # taken down from here
                    self.bring_up(Distribution(workers=max(self.num_nodes, 1)))
                    return self._idle.pop()
            try:
                connection = self._connect()[0]
                waiting_line.end()
                return connection
            except (OSError, LineBroke, ProtocolError) as error:
                trouble: Exception = error
            with self._lock:
                if self._has_ended():
                    return self._start_anew()
            if time.monotonic() > deadline:
                raise EngineError(
                    f"node 0 of {self.name} cannot be reached for {limit_s:g} s: {trouble}",
                    hint=f"windlass why {self._here().job_id}",
                ) from trouble
            waiting_line.show(f"{self.name}: waiting for node 0 ({trouble})")
            time.sleep(_RETRY_S)

    def _has_ended(self) -> bool:
        try:
            return self.wanted.engine.status(self._here()).phase.is_final
        except JobNotFound:
            return True

    def _start_anew(self) -> Connection:
        if self._is_adopted:
            raise JobNotFound(
                f"the nodes of {self.name} are gone", hint="deploy it again, or .to(compute) again"
            )
        say(f"{self.name}: its nodes are gone, starting others")
        if not self.is_remote and self.ref is not None:
            remove_spills(self.ref.job_id)  # a lead that was killed could not
        num_nodes, self.ref, self.num_nodes = self.num_nodes, None, 0
        self.has.clear()
        self._hang_up()
        self._start(num_nodes)
        return self._idle.pop()

    def look_after(self, what: str) -> None:
        """A call waits for nodes: start those that nobody else will, and say what keeps the others."""
        if not what.startswith("waiting for node"):
            waiting_line.show(f"{self.name}: {what}")
            return
        ref, engine = self._here(), self.wanted.engine
        with contextlib.suppress(OSError, WindlassError):
            if ask_at(engine, ref).nodes < self.num_nodes:  # somebody took nodes away since
                self.scale(self.num_nodes, at_least=True)
            if not self.is_remote:
                self._restart_lost(ref)
        if not self.is_remote:
            return
        blocked, hint = self._start_wait.explain(engine.status(ref), ref)
        waiting_line.show(f"{self.name}: {what}{f': {blocked}' if blocked else ''}", hint)

    def _restart_lost(self, ref: JobRef) -> None:
        """Nodes of this machine that died are started again by the client that misses them."""
        info = ask_at(self.wanted.engine, ref)
        missing = [i for i in range(info.nodes) if i not in info.here]
        lost = {
            node.index
            for node in self.wanted.engine.status(ref).nodes
            if node.state == NodeState.LOST
        }
        if todo := [index for index in missing if index in lost]:
            say(f"{self.name}: starting node {', '.join(map(str, todo))} again")
            self.wanted.engine.grow(ref, todo, info.nodes, hidden=self.wanted.hidden)

    # -- ending --------------------------------------------------------------------------------

    def teardown(self) -> None:
        """End the nodes, whichever process started them."""
        with self._lock:
            self._hang_up()
            engine = self.wanted.engine
            there = (
                [ref for ref, _ in find_meant(self.wanted, self.asked_as)] if not self.ref else []
            )
            for ref in [self.ref] if self.ref else there:
                end_job(self.wanted, ref)
                engine.let_go(ref)
            self.ref = None  # how many there were is known to the next call
            self.has.clear()


def _part_all() -> None:
    for nodes in _all:
        nodes.part()


os.register_at_fork(after_in_child=_part_all)
