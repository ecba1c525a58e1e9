"""Agents of one job as processes of their own, over real TLS, on lines that a test can sever and heal.

Each follower reaches its lead by a line of its own, as pods reach theirs through a Service: a severed line
is silent, drops nothing and closes nothing; a line can be led to another lead, which counts for new
connections. Ranks note when they lived, so that a test can tell whether two attempts ever did at once.
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
from windlass.agent.lead.stores import HeldPort, hold_port
from windlass.engines.archives import local_archive
from windlass.plan.plan import Plan, render_plan
from windlass.spec.work import Command
from windlass.wire.job_folder import JobFolder
from windlass.wire.status import JobStatus

_ENV = {**os.environ, "PYTHONPATH": str(Path(windlass.__file__).parents[1])}
HEARTBEAT_S = 0.25
SIGHT = {"silence_s": 2.0, "fence_s": 4.0, "cut_grace_s": 1.0, "slack_s": 1.0}
FEWER_AFTER_S = 2.0

# A rank that notes every few milliseconds that it lives; deaf to SIGTERM; done once it is told.
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


class Line:
    """A relay between a node and whoever leads; `sever` makes it silent, both ways."""

    def __init__(self) -> None:
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port = self._listening.getsockname()[1]
        self.target = 0
        self._flows = _flowing()
        self._open: list[socket.socket] = [self._listening]
        threading.Thread(target=self._accept, daemon=True).start()

    def sever(self) -> None:
        self._flows.clear()

    def heal(self) -> None:
        self._flows.set()

    def divert(self, port: int) -> None:
        """Connections that are severed stay so; new ones go elsewhere."""
        self.target, self._flows = port, _flowing()

    def reset(self) -> None:
        """Break the connections that are open, not in order."""
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


def _flowing() -> threading.Event:
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
    """End it as the other side's machine did: not in order."""
    import struct

    with contextlib.closing(connection), contextlib.suppress(OSError):
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        connection.shutdown(socket.SHUT_RD)


@dataclass
class Agent:
    """One agent's process."""

    name: str
    index: int
    process: subprocess.Popen[bytes]
    folder: JobFolder
    port: int

    def status(self) -> JobStatus | None:
        """Of the job, as this lead writes it."""
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
    """One job's agents and lines."""

    path: Path
    plan: Plan
    lines: dict[int, Line] = field(default_factory=dict)
    agents: dict[str, Agent] = field(default_factory=dict)
    held: list[HeldPort] = field(default_factory=list)
    python: str = sys.executable

    def start_all(self) -> Agent:
        """All nodes, the lead last and once the others ask for it: so the first attempt has them all."""
        port = self._hold_port()
        followers = range(1, len(self.plan.nodes))
        for index in followers:
            self.lines.setdefault(index, Line()).target = port
            self.start(str(index), index)
        for index in followers:
            wait_for(
                lambda i=index: "is not there yet" in self.log(str(i)), f"node {index} is up", 60
            )
        lead = self.start("0", 0, port=port)
        self.wait_for_ranks(0, len(self.plan.nodes), 60)
        return lead

    def _hold_port(self) -> int:
        """Nobody else's until an agent listens there."""
        self.held.append(hold_port())
        return self.held[-1].number

    def log(self, name: str) -> str:
        """What an agent said of itself."""
        return (self.path / f"{name}.log").read_text()

    def start(self, name: str, index: int, *, num_losses: int = 0, port: int = 0) -> Agent:
        """Start an agent; who leads listens at `port`, or any."""
        folder = JobFolder(self.path / name)
        (folder.path / "run").mkdir(parents=True)
        folder.plan.write_text(render_plan(self.plan))
        port = port or self._hold_port()
        line = self.lines.setdefault(index, Line())
        about = {
            "name": name,
            "index": index,
            "folder": str(folder.path),
            "certificates": str(self.path / "tls"),
            "own_port": port,
            "lead_port": line.port,
            "archive": str(local_archive()),
            "num_losses": num_losses,
            "heartbeat_s": HEARTBEAT_S,
            "fewer_after_s": FEWER_AFTER_S,
            "sight": SIGHT,
        }
        with (self.path / f"{name}.log").open("wb") as log:
            command = make_command("agent", about, python=self.python)
            process = subprocess.Popen(command, stderr=log, env=_ENV)
        agent = self.agents[name] = Agent(name, index, process, folder, port)
        return agent

    def lead_to(self, lead: Agent, *indexes: int) -> None:
        """New connections of these nodes go to this lead."""
        for index in indexes:
            self.lines.setdefault(index, Line()).target = lead.port

    def sever(self, *indexes: int) -> None:
        for index in indexes:
            self.lines[index].sever()

    def heal(self, *indexes: int) -> None:
        for index in indexes:
            self.lines[index].heal()

    # -- what ranks noted ----------------------------------------------------------------------

    @property
    def notes(self) -> Path:
        return self.path / "notes"

    def num_ranks(self, attempt: int) -> int:
        """How many ranks of an attempt have lived and noted it, whoever led it."""
        return sum(path.stat().st_size > 0 for path in self.notes.glob(f"{attempt}-*"))

    def wait_for_ranks(self, attempt: int, count: int, timeout_s: float = 25.0) -> None:
        what = f"{count} ranks in attempt {attempt}"
        wait_for(lambda: self.num_ranks(attempt) >= count, what, timeout_s)

    def _times(self, path: Path) -> list[float]:
        return [float(line) for line in path.read_text().split()]

    def spans(self) -> dict[str, tuple[float, float]]:
        """When each world began and ended, by the ranks that lived in it."""
        found: dict[str, tuple[float, float]] = {}
        for path in self.notes.glob("*-*.*"):
            if not path.stat().st_size:  # the job was done before it had noted anything
                continue
            world, times = path.name.rpartition(".")[0], self._times(path)
            first, last = found.get(world, (times[0], times[-1]))
            found[world] = (min(first, times[0]), max(last, times[-1]))
        return found

    def check_one_world(self) -> list[str]:
        """No two worlds at the same time; their names in order."""
        spans = sorted(self.spans().items(), key=lambda item: item[1])
        for (world, (_, ended_s)), (after, (began_s, _)) in itertools.pairwise(spans):
            assert ended_s < began_s, f"{world} ended {ended_s - began_s:.2f} s after {after} began"
        return [world for world, _ in spans]


@contextlib.contextmanager
def open_ground(tmp_path: Path, *, python: str = sys.executable, **spec: Any) -> Iterator[Ground]:
    """A job of four nodes, of which two will do, whose ranks are deaf and have five minutes of grace."""
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
        for line in ground.lines.values():
            line.close()
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
