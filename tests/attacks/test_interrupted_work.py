"""Work that is interrupted at the worst moment is neither run twice nor lost silently.

Covers a connection that breaks while 201 other calls are made, and a lead killed during a call. Also covers a
node killed after its ranks returned and before it sent their results.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal

import pytest
from attacks import once
from pod_connections import make_job, put, run_lead_server
from tls_peers import until
from waits import wait_for

import windlass as wl
from windlass import records
from windlass.agent.lead.calls.call_queue import KEPT_CALLS
from windlass.engines.finished_jobs import read_outcomes
from windlass.spec.work import Function
from windlass.wire.messages.jobs import NODE_TO_LEAD
from windlass.wire.results import MISSING, ResultHeader
from windlass.wire.status import Phase


@pytest.fixture
def compute():
    found = wl.Compute(engine="local", name="interrupted")
    yield found
    found.teardown()


def test_201_calls_during_a_broken_connection(compute, tmp_path):
    path = tmp_path / "ran"
    remote = wl.fn(once.append).to(compute)
    calling, _ = remote._make("", (str(path), "once"), {}, remote._options, detach=False)
    calling.send()
    wait_for(path.exists, "it runs")
    calling._connection.close()
    echo = wl.fn(once.echo, keep="process").to(compute)
    assert [echo(number) for number in range(KEPT_CALLS + 1)] == list(range(KEPT_CALLS + 1))
    with pytest.raises(wl.JobNotFound, match="outcome is no longer known") as caught:
        calling.follow()
    assert not caught.value.retryable
    assert path.read_text() == "once\n"


def test_lead_killed_during_a_call(compute, tmp_path):
    path = tmp_path / "ran"
    job = wl.fn(once.append_and_hang).to(compute).submit(str(path))
    wait_for(lambda: path.exists() and path.read_text().endswith("\n"), "it runs")
    os.kill(int(path.read_text()), signal.SIGKILL)
    assert isinstance(job.exception(timeout_s=60), wl.NodeLost)
    assert wl.fn(once.echo).to(compute)("next") == "next"
    assert len(path.read_text().split()) == 1, "it was run again"


def test_node_killed_before_sending_its_results(tmp_path):
    """The job is not run again, the other result is there, and a condition names the missing one."""

    async def visit(scene):
        leading = asyncio.ensure_future(scene.lead.run())
        peer = await scene.join(1)
        await until(lambda: scene.orders and peer.find("start"), "the start")
        header = ResultHeader(rank=0, attempt=0, state="returned", at_s=1.0)
        text = json.dumps(records.to_json(header)).encode() + b"\nvalue"
        put(scene.folder, "attempt-0/rank-0.result", text)
        for rank, say in (
            (0, lambda m: scene.lead.receive(0, NODE_TO_LEAD.read(m))),
            (1, peer.link.send),
        ):
            outcome = {"rank": rank, "attempt": 0, "state": "returned", "at_s": 1.0}
            say({"type": "outcome", "outcome": outcome, "exited": True})
        await until(lambda: peer.find("flush"), "the order to flush")
        scene.lead.receive(0, NODE_TO_LEAD.read({"type": "flushed"}))
        await peer.close()  # the agent was killed, so its machine closes the connection
        again = await scene.join(1)  # the pod that Kubernetes starts instead has no results
        await until(lambda: again.find("flush"), "it is asked")
        again.say("flushed")
        await asyncio.wait_for(leading, 30)
        status = scene.status_writer.status
        assert (status.phase, status.attempt) == (Phase.SUCCEEDED, 0)
        assert "the result of rank 1 is missing" in status.conditions[-2].message
        left = read_outcomes(scene.folder, scene.plan, status, with_values=True)
        assert [found[0].state for found in left] == ["returned", MISSING]
        assert left[0][1] == b"value"

    run_lead_server(tmp_path, visit, make_job(nodes=2, work=Function(name="train")))
