"""Socket between agent and fork server: requests with descriptors, events in return, and real ranks."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading

import pytest
from waits import wait_for

from windlass import processes
from windlass.agent.fork_server_client import ForkServer, read_request, send_event
from windlass.engines.archives import local_archive
from windlass.plan.plan import Facts, make_plan, render_plan
from windlass.spec.job_spec import JobSpec
from windlass.spec.work import Command
from windlass.wire.messages.forkserver import ForkRank, ModulesImported, ProcessExited


@pytest.fixture
def ends():
    agent, server = socket.socketpair()
    with agent, server:
        yield agent, server


def ask(agent, request, fds=()):
    """Send a request as `ForkServer` does: the length with the descriptors, then the body."""
    body = json.dumps(request.to_header()).encode()
    socket.send_fds(agent, [len(body).to_bytes(4, "big")], fds)
    agent.sendall(body)


def make_request(rank, text):
    return ForkRank(
        framework="spmd", rank=rank, attempt=0, env={"A": text}, plan="plan.json", forget=[]
    )


def test_a_request_brings_its_descriptors(ends, tmp_path):
    agent, server = ends
    (tmp_path / "file").write_text("through the socket")
    with (tmp_path / "file").open() as file:
        ask(agent, make_request(3, "é\n"), [file.fileno()])
    request, [fd] = read_request(server)
    assert request == make_request(3, "é\n")
    with os.fdopen(fd) as again:
        assert again.read() == "through the socket"


def test_requests_are_kept_apart(ends):
    agent, server = ends
    sent = [make_request(rank, "x" * 50_000 * rank) for rank in range(4)]
    asking = threading.Thread(target=lambda: [ask(agent, request) for request in sent])
    asking.start()
    assert [read_request(server)[0] for _ in sent] == sent
    asking.join()


@pytest.mark.parametrize("data", [b"", b"\0\0\0\x10", b'\0\0\0\x10{"rank"'])
def test_disconnected_agent_is_the_end(ends, data):
    agent, server = ends
    agent.sendall(data)
    agent.close()
    assert read_request(server) is None


def test_an_event_is_a_line(ends):
    agent, server = ends
    about = {"modules": [], "num_threads": 1, "culprit": ""}
    send_event(server, ModulesImported(missing={"a": "two\nlines"}, **about))
    send_event(server, ProcessExited(pid=3, code=-9))
    first, second, rest = agent.recv(65536).split(b"\n")
    assert json.loads(first) == {"event": "ready", "missing": {"a": "two\nlines"}, **about}
    assert (json.loads(second), rest) == ({"event": "exited", "pid": 3, "code": -9}, b"")


def test_server_that_is_not_running():
    server = ForkServer()
    assert not server.is_running
    assert not server.fits([], {})
    server.close()
    assert server.pid == 0


# The agent is a separate process, because closing a fork server kills everything below the agent.
AGENT = """
import asyncio, json, os, sys
from windlass.agent.fork_server_client import ForkServer
from windlass.wire.messages.forkserver import ForkRank
archive, plan, how = sys.argv[1:]
sys.argv = [archive]
events = []

async def run():
    server = ForkServer()
    server.start(["json", "no_such_module"], dict(os.environ))
    loop, more = asyncio.get_running_loop(), asyncio.Event()
    def on_event(event):
        events.append(event.to_header())
        more.set()
    server.listen(loop, on_event)
    async def until(kind, num=1):
        while sum(e["event"] == kind for e in events) < num:
            more.clear()
            await asyncio.wait_for(more.wait(), 60)
    await until("ready")
    assert server.fits(["json", "no_such_module"], dict(os.environ))
    assert not server.fits([], dict(os.environ))
    assert not server.fits(["json", "no_such_module"], {**os.environ, "OMP_NUM_THREADS": "9"})
    out, err = os.pipe(), os.pipe()
    for rank in range(2):
        env = {"RANK": str(rank), "WHAT": "x y"}
        request = ForkRank(framework="command", rank=rank, attempt=0, env=env, plan=plan)
        server.fork(request, (out[1], err[1]))
    os.close(out[1]); os.close(err[1])
    await until("started", 2)
    if how == "kill":
        os.kill(server.pid, 9)
        await until("gone")
        assert not server.is_running
    else:
        await until("exited", 2)
        print(json.dumps(sorted(os.read(out[0], 65536).decode().splitlines())))
    server.close()
    print(json.dumps(events))

asyncio.run(run())
"""


def run_agent(tmp_path, how, *argv):
    spec = JobSpec(work=Command(argv=argv), procs=2)
    plan = make_plan(spec, job_id="job-1", now_s=0, facts=Facts(environ={}))
    (tmp_path / "plan.json").write_text(render_plan(plan))
    archive = local_archive()
    answer = subprocess.run(
        [sys.executable, "-c", AGENT, archive, tmp_path / "plan.json", how],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert answer.returncode == 0, answer.stderr
    return [json.loads(line) for line in answer.stdout.splitlines()]


def test_ranks_start_run_and_exit(tmp_path):
    text, events = run_agent(tmp_path, "run", "sh", "-c", 'echo "$RANK $WHAT"; exit $((RANK + 5))')
    assert text == ["0 x y", "1 x y"]
    [ready] = [event for event in events if event["event"] == "ready"]
    assert list(ready["missing"]) == ["no_such_module"]
    assert (ready["num_threads"], ready["culprit"]) == (1, "")
    pids = {event["rank"]: event["pid"] for event in events if event["event"] == "started"}
    codes = {event["pid"]: event["code"] for event in events if event["event"] == "exited"}
    assert {rank: codes[pid] for rank, pid in pids.items()} == {0: 5, 1: 6}


def test_killed_server_is_reported_and_its_ranks_die(tmp_path):
    [events] = run_agent(tmp_path, "kill", "sleep", "618")
    assert events[-1] == {"event": "gone"}
    for pid in (event["pid"] for event in events if event["event"] == "started"):
        wait_for(lambda p=pid: p not in processes.read_parents(), f"rank {pid} has exited")
