"""Kept processes: which state stays in them, which never does, and how they end."""

from __future__ import annotations

import functools
import os

import pytest
import warm_tasks as tasks

import windlass as kt
from windlass import names

NAP = """
import os, time

def nap(seconds):
    time.sleep(seconds)
    return os.getpid()
"""


def end_by_timeout(remote):
    with pytest.raises(kt.JobTimeout):
        remote(600, timeout=1)


def end_by_cancel(remote):
    remote.submit(600).cancel()


@pytest.mark.parametrize("end", [end_by_timeout, end_by_cancel])
def test_ended_call_ends_its_ranks(project, warm, end):
    """This also holds for later calls of a process. The next call must not wait for the ended one."""
    project.write("{stem}.py", NAP)
    remote = kt.fn(project.load("{stem}").nap, keep="process").to(warm)
    before = remote(0)
    assert remote(0) == before
    end(remote)
    assert remote(0, timeout=60) != before


def test_ranks_that_all_raise_are_kept(warm):
    counter = kt.cls(tasks.Counter, name="together").to(warm).distribute("spmd", workers=2)
    before = [each["pid"] for each in counter.whoami()]
    for _ in range(3):
        with pytest.raises(tasks.Wrong):
            counter.fail()
    assert [each["pid"] for each in counter.whoami()] == before


def test_every_handle_uses_edited_code(project, warm):
    def edit(value):
        project.write("{stem}.py", f"def value():\n    return {value}\n")

    edit(1)
    function = project.load("{stem}").value
    one = kt.fn(function, keep="process").to(warm)
    assert one() == 1
    edit(22)
    two = kt.fn(function, keep="process").to(warm)
    assert two() == 22
    edit(333)
    assert one.options(timeout=60)() == 333
    edit(4444)
    assert two() == 4444
    edit(55555)
    assert one() == 55555


@pytest.mark.local_only("a traveling project is looked at as a whole")
@pytest.mark.parametrize("folder", ["dist", "build", "sub"])
def test_edit_is_detected_in_any_folder(project, warm, folder, monkeypatch):
    name = f"{project.stem}_{folder}"
    path = project.write(f"{folder}/{name}.py", "def value():\n    return 1\n")
    monkeypatch.syspath_prepend(str(path.parent))
    remote = kt.fn(project.load(name).value, keep="process").to(warm)
    assert [remote(), remote(), remote()] == [1, 1, 1]
    path.write_text("def value():\n    return 22\n")
    assert remote() == 22


def test_edit_of_an_open_file_is_detected(project, warm):
    path = project.write("{stem}.py", "def value():\n    return 1\n")
    remote = kt.fn(project.load("{stem}").value, keep="process").to(warm)
    assert [remote(), remote()] == [1, 1]
    with path.open("w") as file:
        file.write("def value():\n    return 22\n")
        file.flush()
        assert remote() == 22


@pytest.mark.parametrize("keep", ["", "process"], ids=["fresh", "kept"])
def test_current_state_of_a_callable_is_sent(warm, keep):
    things = [1]
    remote = kt.fn(functools.partial(tasks.echo, things), keep=keep).to(warm)
    assert remote() == (([1],), {})
    things.append(2)
    assert remote() == (([1, 2],), {})
    counter = tasks.Held(5)
    method = kt.fn(counter.read, keep=keep).to(warm)
    assert method() == 5
    counter.value = 6
    assert method() == 6


def test_failed_constructor_is_retried(project, warm):
    project.write("{stem}.py", "class Thing:\n    def __init__(self):\n        1 / 0\n")
    remote = kt.cls(project.load("{stem}").Thing).to(warm)
    with pytest.raises(ZeroDivisionError):
        remote.hello()
    project.write(
        "{stem}.py",
        """
        class Thing:
            def __init__(self):
                self.word = "hello"
            def hello(self):
                return self.word
        """,
    )
    assert remote.hello() == "hello"


def test_alternating_calls_send_their_profiles_once(warm):
    counter = kt.cls(tasks.Counter, name="in-turn").to(warm)

    def call_in_turn():
        counter.add()
        counter.was_born()
        counter.options(timeout=60).add()
        return {key for connection in warm.nodes().connections._free for key in connection.profiles}

    known = call_in_turn()
    for _ in range(5):
        assert call_in_turn() == known


def test_callable_object(warm):
    remote = kt.cls(tasks.Callable).to(warm)
    assert remote(1) == 2
    assert remote.submit(2).results(timeout_s=60) == [3]


def test_oversized_init_args_are_refused_by_the_client(warm, monkeypatch):
    monkeypatch.setattr(names, "MAX_BODY_BYTES", 1000)
    remote = kt.cls(tasks.Counter, init_args=["x" * 2000]).to(warm)
    with pytest.raises(kt.SpecError, match="init_args"):
        remote.add()


@pytest.mark.local_only("what a cluster's client shares with a fork is not its own to mend")
def test_forked_client_uses_its_own_connections(warm, start_client):
    client = start_client(
        warm,
        """
        import os
        call = remote(tasks.echo, keep="process")
        assert call(0) == ((0,), {})
        pids = []
        for number in range(3):
            pid = os.fork()
            if pid == 0:
                for each in range(5):
                    assert call(number, each) == ((number, each), {})
                os._exit(0)
            pids.append(pid)
        for each in range(5):
            assert call("parent", each) == (("parent", each), {})
        codes = [os.waitpid(pid, 0)[1] for pid in pids]
        print("codes", codes, flush=True)
        """,
    )
    assert client.read_line() == "codes [0, 0, 0]"


@pytest.mark.local_only("there payloads lie on this machine")
def test_stream_items_leave_no_files(project, warm):
    project.write(
        "{stem}.py",
        """
        def pieces():
            for number in range(12):
                yield bytes([number]) * (3 << 20)
        """,
    )
    remote = kt.fn(project.load("{stem}").pieces).to(warm)
    assert [piece[0] for piece in remote(stream=True)] == list(range(12))
    assert os.listdir(warm.nodes().spill) == []
