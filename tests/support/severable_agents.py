"""Agents of one job in separate processes, over real TLS, on connections that a test can sever and heal.

Each follower reaches its lead through a relay of its own, as pods reach theirs through a Service. A severed
relay stops forwarding, but drops no data and closes no connection. A relay can be pointed at another lead,
which affects new connections only. Ranks record when they were alive, so a test can detect two attempts that
overlap.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pod_connections import make_job
from pod_programs import make_command
from tls_peers import write_certificates
from waits import wait_for

import windlass
from windlass import records
from windlass.agent.lead.stores import ReservedPort, reserve_port
from windlass.engines.archives import local_archive
from windlass.plan.plan import Plan, render_plan
from windlass.spec.work import Command
from windlass.wire.job_folder import JobFolder
from windlass.wire.status import JobStatus

_ENV = {**os.environ, "PYTHONPATH": str(Path(windlass.__file__).parents[1])}
HEARTBEAT_S = 0.25
DEFAULT_LIMITS = {"silence_s": 2.0, "fence_s": 4.0, "cut_grace_s": 1.0, "slack_s": 1.0}
FEWER_AFTER_S = 2.0

# A rank that records every few milliseconds that it is alive. It ignores SIGTERM, and exits once `done`
# exists.
RANK = """
import os, pathlib, signal, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
folder = pathlib.Path(sys.argv[1])
world = f"{os.environ['TORCHELASTIC_RESTART_COUNT']}-{os.environ['MASTER_PORT']}"
with open(folder / f"{world}.{os.getpid()}", "a", buffering=1) as file:
    while not (folder / "done").exists():
        file.write(f"{time.monotonic()}\\n")
        time.sleep(0.02)
"""


class Relay:
    """Relay between a node and its lead. `sever` stops forwarding in both directions."""

    def __init__(self) -> None:
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port = self._listening.getsockname()[1]
        self.target = 0
        self._flows = _make_open_gate()
        self._open: list[socket.socket] = [self._listening]
        threading.Thread(target=self._accept, daemon=True).start()

    def sever(self) -> None:
        self._flows.clear()

    def heal(self) -> None:
        self._flows.set()

    def divert(self, port: int) -> None:
        """Send new connections to another port. Severed connections stay severed."""
        self.target, self._flows = port, _make_open_gate()

    def reset(self) -> None:
        """Reset the open connections instead of closing them cleanly."""
        broken, self._open = self._open[1:], self._open[:1]
        for one in broken:
            _reset(one)

    def close(self) -> None:
        for one in self._open:
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                near, _ = self._listening.accept()
                self._open.append(near)
                threading.Thread(target=self._join, args=(near,), daemon=True).start()

    def _join(self, near: socket.socket) -> None:
        self._flows.wait()
        flows = self._flows
        try:
            far = socket.create_connection(("127.0.0.1", self.target), timeout=5)
        except OSError:
            near.close()
            return
        far.settimeout(None)
        self._open.append(far)
        for source, sink in ((near, far), (far, near)):
            threading.Thread(target=_pass_on, args=(source, sink, flows), daemon=True).start()


def _make_open_gate() -> threading.Event:
    flows = threading.Event()
    flows.set()
    return flows


def _pass_on(source: socket.socket, sink: socket.socket, flows: threading.Event) -> None:
    try:
        while data := source.recv(65536):
            flows.wait()
            sink.sendall(data)
        flows.wait()
        sink.shutdown(socket.SHUT_WR)
    except ConnectionResetError:
        flows.wait()
        _reset(sink)
    except OSError:
        pass


def _reset(connection: socket.socket) -> None:
    """Reset a connection, as if the other machine had done it."""
    import struct

    with contextlib.closing(connection), contextlib.suppress(OSError):
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        connection.shutdown(socket.SHUT_RD)


@dataclass
class Agent:
    """Process of one agent."""

    name: str
    index: int
    process: subprocess.Popen[bytes]
    folder: JobFolder
    port: int

    def status(self) -> JobStatus | None:
        """Return the job's status as this lead writes it, or None if there is none yet."""
        try:
            return records.read(JobStatus, json.loads(self.folder.status.read_bytes()))
        except OSError:
            return None

    def messages(self, reason: str) -> list[str]:
        status = self.status()
        return [c.message for c in status.conditions if c.reason == reason] if status else []

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(20)


@dataclass
class Ground:
    """Agents and relays of one job."""

    path: Path
    plan: Plan
    relays: dict[int, Relay] = field(default_factory=dict)
    agents: dict[str, Agent] = field(default_factory=dict)
    held: list[ReservedPort] = field(default_factory=list)
    python: str = sys.executable

    def start_all(self) -> Agent:
        """Start all nodes, and the lead last, so the first attempt has all of them.

        The lead starts once all followers have tried to connect.
        """
        port = self._hold_port()
        followers = range(1, len(self.plan.nodes))
        for index in followers:
            self.relays.setdefault(index, Relay()).target = port
            self.start(str(index), index)
        for index in followers:
            wait_for(
                lambda i=index: "cannot be reached yet" in self.log(str(i)),
                f"node {index} is up",
                60,
            )
        lead = self.start("0", 0, port=port)
        self.wait_for_ranks(0, len(self.plan.nodes), 60)
        return lead

    def _hold_port(self) -> int:
        """Reserve a free port until an agent listens on it."""
        self.held.append(reserve_port())
        return self.held[-1].number

    def log(self, name: str) -> str:
        """Return the log of an agent."""
        return (self.path / f"{name}.log").read_text()

    def start(self, name: str, index: int, *, num_losses: int = 0, port: int = 0) -> Agent:
        """Start an agent. A lead listens on `port`, or on any free port if it is 0."""
        folder = JobFolder(self.path / name)
        (folder.path / "run").mkdir(parents=True)
        folder.plan.write_text(render_plan(self.plan))
        port = port or self._hold_port()
        relay = self.relays.setdefault(index, Relay())
        about = {
            "name": name,
            "index": index,
            "folder": str(folder.path),
            "certificates": str(self.path / "tls"),
            "own_port": port,
            "lead_port": relay.port,
            "archive": str(local_archive()),
            "num_losses": num_losses,
            "heartbeat_s": HEARTBEAT_S,
            "fewer_after_s": FEWER_AFTER_S,
            "limits": DEFAULT_LIMITS,
        }
        with (self.path / f"{name}.log").open("wb") as log:
            command = make_command("agent", about, python=self.python)
            process = subprocess.Popen(command, stderr=log, env=_ENV)
        agent = self.agents[name] = Agent(name, index, process, folder, port)
        return agent

    def lead_to(self, lead: Agent, *indexes: int) -> None:
        """Send new connections of these nodes to this lead."""
        for index in indexes:
            self.relays.setdefault(index, Relay()).target = lead.port

    def sever(self, *indexes: int) -> None:
        for index in indexes:
            self.relays[index].sever()

    def heal(self, *indexes: int) -> None:
        for index in indexes:
            self.relays[index].heal()

    # -- records of the ranks --------------------------------------------------------------------

    @property
    def notes(self) -> Path:
        return self.path / "notes"

    def num_ranks(self, attempt: int) -> int:
        """Return how many ranks of an attempt have recorded a time, under any lead."""
        return sum(path.stat().st_size > 0 for path in self.notes.glob(f"{attempt}-*"))

    def wait_for_ranks(self, attempt: int, count: int, timeout_s: float = 25.0) -> None:
        what = f"{count} ranks in attempt {attempt}"
        wait_for(lambda: self.num_ranks(attempt) >= count, what, timeout_s)

    def _times(self, path: Path) -> list[float]:
        return [float(line) for line in path.read_text().split()]

    def spans(self) -> dict[str, tuple[float, float]]:
        """Return when each world began and ended, according to the times its ranks recorded."""
        found: dict[str, tuple[float, float]] = {}
        for path in self.notes.glob("*-*.*"):
            if not path.stat().st_size:  # the job ended before this rank recorded anything
                continue
            world, times = path.name.rpartition(".")[0], self._times(path)
            first, last = found.get(world, (times[0], times[-1]))
            found[world] = (min(first, times[0]), max(last, times[-1]))
        return found

    def check_one_world(self) -> list[str]:
        """Assert that no two worlds overlap, and return their names in order."""
        spans = sorted(self.spans().items(), key=lambda item: item[1])
        for (world, (_, ended_s)), (after, (began_s, _)) in itertools.pairwise(spans):
            assert ended_s < began_s, f"{world} ended {ended_s - began_s:.2f} s after {after} began"
        return [world for world, _ in spans]


@contextlib.contextmanager
def open_ground(tmp_path: Path, *, python: str = sys.executable, **spec: Any) -> Iterator[Ground]:
    """Yield a job of four nodes that needs two, whose ranks ignore SIGTERM and have 300 s of grace."""
    path = tmp_path / "ground"
    path.mkdir()
    notes = path / "notes"
    notes.mkdir()
    work = Command(argv=(sys.executable, "-I", "-S", "-c", RANK, str(notes)))
    asked = {"nodes": 4, "min_nodes": 2, "grace_s": 300.0, "join_timeout_s": 120.0}
    plan = make_job(**{**asked, "node_restarts": 50, "work": work, **spec})
    write_certificates(path / "tls")
    ground = Ground(path, plan, python=python)
    try:
        yield ground
    finally:
        (notes / "done").touch()
        for relay in ground.relays.values():
            relay.close()
        for held in ground.held:
            held.release()
        for agent in ground.agents.values():
            agent.process.send_signal(signal.SIGCONT)
            agent.kill()
            print(f"== {agent.name}\n{ground.log(agent.name)[-6000:]}")
        wait_for(lambda: not _find_ranks(notes), "no rank is left", 30)


def _find_ranks(notes: Path) -> list[int]:
    needle = str(notes).encode()
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            with contextlib.suppress(OSError):
                if needle in (entry / "cmdline").read_bytes():
                    found.append(int(entry.name))
    return found
