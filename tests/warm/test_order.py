"""Order of calls: they run one at a time in arrival order, from any client, and outlive their clients."""

from __future__ import annotations

import io
import itertools
import json
import signal
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import warm_tasks as tasks
from waits import wait_for

import windlass as kt
from windlass.client.compute.calls import client_call

WAIT_S = 120.0


def find_calls(on, compute, state):
    return [call["id"] for call in on.info(compute)["calls"] if call["state"] == state]


def assert_apart(times):
    """Check that no two calls overlapped."""
    ordered = sorted(times, key=lambda each: each[1])
    for before, after in itertools.pairwise(ordered):
        assert before[2] <= after[1], f"{before} and {after} ran at once"


def test_submitted_calls_run_in_order_one_at_a_time(warm):
    remote = kt.fn(tasks.take_time).to(warm)
    words = [str(number) for number in range(6)]
    jobs = [remote.submit(word, 0.05) for word in words]
    times = [job.results(timeout_s=WAIT_S)[0] for job in jobs]
    assert_apart(times)
    assert [word for word, _, _ in sorted(times, key=lambda each: each[1])] == words


def test_calls_of_many_threads_run_one_at_a_time(warm):
    remote = kt.fn(tasks.take_time).to(warm).distribute("spmd", workers=2)
    times, errors = [], []

    def call(word):
        try:
            times.extend(remote(word, 0.05)[:1])
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=call, args=(str(number),)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(WAIT_S)
    assert errors == []
    assert {word for word, _, _ in times} == {str(number) for number in range(8)}
    assert_apart(times)


def test_calls_to_kept_processes_run_one_at_a_time(warm):
    remote = kt.fn(tasks.take_time, keep="process").to(warm)
    jobs = [remote.submit(str(number), 0.02) for number in range(6)]
    times = [job.results(timeout_s=WAIT_S)[0] for job in jobs]
    assert [word for word, _, _ in times] == [str(number) for number in range(6)]
    assert_apart(times)


def test_a_queued_call_can_be_cancelled(warm, shared):
    remote = kt.fn(tasks.block).to(warm)
    first = remote.submit(f"{shared.path}/started", f"{shared.path}/go")
    shared.wait_for("started")
    second = remote.submit(f"{shared.path}/second", f"{shared.path}/go")
    second.cancel()
    with pytest.raises(kt.JobCancelled):
        second.results(timeout_s=WAIT_S)
    shared.touch("go")
    assert first.results(timeout_s=WAIT_S)
    assert not shared.exists("second")


def test_two_clients_of_one_compute(warm, start_client):
    kt.fn(tasks.echo).to(warm)()
    code = """
    import json
    f = remote(tasks.take_time).distribute("spmd", workers=2)
    print(json.dumps([f(f"{word}-{number}", 0.02)[0] for number in range(5)]))
    """
    clients = [start_client(warm, code.replace("{word}", word)) for word in ("a", "b")]
    found = [json.loads(client.finish()) for client in clients]
    for word, times in zip("ab", found, strict=True):
        assert [each[0] for each in times] == [f"{word}-{number}" for number in range(5)]
    assert_apart([each for times in found for each in times])


# -- lost clients ---------------------------------------------------------------------------------


def test_attach_to_a_call_whose_client_was_killed(on, warm, shared, start_client):
    kt.fn(tasks.echo).to(warm)()
    client = start_client(
        warm,
        f"""
        job = remote(tasks.block).distribute("spmd", workers=2).submit(
            "{shared.path}/started", "{shared.path}/go")
        print(job.id, flush=True)
        job.results()
        """,
    )
    call_id = client.read_line()
    shared.wait_for("started")
    client.kill()
    job = kt.attach(call_id)
    assert not job.done()
    shared.touch("go")
    assert len(job.results(timeout_s=WAIT_S)) == 2


def test_blocking_call_outlives_its_client(on, warm, shared, start_client):
    kt.fn(tasks.echo).to(warm)()
    client = start_client(warm, f'remote(tasks.block)("{shared.path}/started", "{shared.path}/go")')
    shared.wait_for("started")
    (call_id,) = find_calls(on, warm, "running")
    client.kill()
    shared.touch("go")
    assert len(kt.attach(call_id).results(timeout_s=WAIT_S)) == 1


def test_ended_call_can_still_be_read(warm):
    job = kt.fn(tasks.echo).to(warm).submit(5)
    job.wait(WAIT_S)
    assert kt.attach(job.id).results(timeout_s=WAIT_S) == [((5,), {})]


def test_unknown_call_is_not_found(warm):
    job = kt.fn(tasks.echo).to(warm).submit()
    job.wait(WAIT_S)
    compute = job.id.rpartition(".")[0]
    with pytest.raises(kt.JobNotFound):
        kt.attach(f"{compute}.zzzzzz").status()


def test_ctrl_c_ends_the_call_and_not_the_compute(on, warm, shared, start_client):
    agent = kt.fn(tasks.find_agent).to(warm)()
    client = start_client(
        warm,
        f"""
        try:
            remote(tasks.block).distribute("spmd", workers=2)(
                "{shared.path}/started", "{shared.path}/never")
        except KeyboardInterrupt:
            print("interrupted", flush=True)
            print(remote(tasks.echo)("again"), flush=True)
        """,
    )
    shared.wait_for("started")
    (call_id,) = find_calls(on, warm, "running")
    client.process.send_signal(signal.SIGINT)
    assert client.finish().splitlines() == ["interrupted", "(('again',), {})"]
    wait_for(lambda: kt.attach(call_id).done(), "the call has ended", WAIT_S)
    assert kt.attach(call_id).status().phase.value == "cancelled"
    assert kt.fn(tasks.find_agent).to(warm)() == agent


def capture_stderr(monkeypatch):
    """Replace stderr, and return the buffer with the output of all threads."""
    found = io.StringIO()
    monkeypatch.setattr(sys, "stderr", found)
    return found


def test_waiting_call_reports_it_once(warm, shared, monkeypatch):
    err = capture_stderr(monkeypatch)
    job = kt.fn(tasks.block).to(warm).submit(f"{shared.path}/started", f"{shared.path}/go")
    shared.wait_for("started")
    line = f"waiting for the call {job.id} to end; `windlass cancel {job.id}` stops it"
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(kt.fn(tasks.echo).to(warm), 1)
        wait_for(lambda: line in err.getvalue(), "the wait is reported", 60)
        shared.touch("go")
        assert waiting.result(60) == ((1,), {})
    assert err.getvalue().count(line) == 1


def test_sequential_calls_do_not_report_a_wait(warm, monkeypatch):
    err = capture_stderr(monkeypatch)
    monkeypatch.setattr(client_call, "_CHECK_EVERY_S", 0.02)
    remote = kt.fn(tasks.echo).to(warm).distribute("spmd", workers=2, procs=2)
    for number in range(10):  # the ranks of the previous call may still be exiting
        assert remote(number) == [((number,), {})] * 4
    assert "waiting for the call" not in err.getvalue()
    assert "before this one" not in err.getvalue()
