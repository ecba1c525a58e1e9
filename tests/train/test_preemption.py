"""Preemption. SIGTERM is recorded with the remaining seconds, and an existing handler is still called."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading

import pytest

from windlass import names
from windlass.train.preemption import Preemption, read_grace


@pytest.fixture
def preemption():
    before = signal.getsignal(signal.SIGTERM)
    preemption = Preemption(grace_s=20)
    yield preemption
    preemption.stop_listening()
    signal.signal(signal.SIGTERM, before)


def test_no_notice_at_first(preemption):
    assert preemption.listen()
    assert not preemption.is_noticed
    assert preemption.seconds_left is None


def test_a_real_signal_is_noticed(preemption):
    preemption.listen()
    os.kill(os.getpid(), signal.SIGTERM)
    assert preemption.is_noticed
    assert 15 < preemption.seconds_left <= 20


def test_announced_grace_limits_a_save(preemption, monkeypatch):
    assert preemption.save_limit_s is None
    preemption.notice()
    assert 0 < preemption.save_limit_s <= 20
    monkeypatch.delenv(names.GRACE, raising=False)
    guessed = Preemption()
    guessed.notice()
    assert 0 < guessed.seconds_left <= 30
    assert guessed.save_limit_s is None


def test_first_announcement_counts(preemption):
    preemption.notice()
    first = preemption._deadline_s
    preemption.notice()
    assert preemption._deadline_s == first


def test_expired_grace_is_zero():
    preemption = Preemption(grace_s=0)
    preemption.notice()
    assert preemption.seconds_left == 0


def test_existing_handler_is_called(preemption):
    heard = []
    signal.signal(signal.SIGTERM, lambda number, _frame: heard.append(number))
    preemption.listen()
    os.kill(os.getpid(), signal.SIGTERM)
    assert heard == [signal.SIGTERM]
    assert preemption.is_noticed


def test_listening_twice_does_not_chain_to_itself(preemption):
    preemption.listen()
    preemption.listen()
    os.kill(os.getpid(), signal.SIGTERM)
    assert preemption.is_noticed


def test_original_handler_is_restored(preemption):
    def handler(number, frame):
        pass

    signal.signal(signal.SIGTERM, handler)
    preemption.listen()
    preemption.stop_listening()
    assert signal.getsignal(signal.SIGTERM) is handler


def test_later_handler_decides_at_the_end_of_the_grace(preemption):
    preemption.grace_s = 0
    preemption.listen()
    heard = []
    signal.signal(signal.SIGTERM, lambda number, _frame: heard.append(number))
    preemption._end_unread()
    assert heard == []


def test_another_thread_cannot_listen(preemption, caplog):
    heard = []
    thread = threading.Thread(target=lambda: heard.append(preemption.listen()))
    thread.start()
    thread.join()
    assert heard == [False]
    assert "main thread" in caplog.text


@pytest.mark.parametrize(
    ("text", "grace_s"), [("", 30.0), ("12.5", 12.5), ("-1", 0.0), ("soon", 30.0)]
)
def test_grace_comes_from_the_launcher(text, grace_s):
    assert read_grace({names.GRACE: text}) == grace_s


LOOP = """
import multiprocessing, signal, sys, time
from windlass.train.preemption import Preemption

preemption = Preemption()
preemption.listen()
how = sys.argv[1]

def wait(begun):
    begun.set()
    time.sleep(60)

if how == "child":
    fork = multiprocessing.get_context("fork")
    begun = fork.Event()
    child = fork.Process(target=wait, args=(begun,))
    child.start()
    begun.wait()
    child.terminate()
    child.join()
    sys.exit(child.exitcode == -signal.SIGTERM)
print("ready", flush=True)
reads = how == "reads"
while not (preemption.is_noticed if reads else preemption._deadline_s is not None):
    time.sleep(0.01)
print("noticed", flush=True)
while not reads:
    time.sleep(0.01)
sys.stdin.readline()
sys.exit(7)
"""


# Neither loop checks for the notice while it runs. Saving checkpoints does not check, and fit() has returned.
AFTER = """
import sys, time, torch
from windlass.train import Checkpoints, TorchTrainer, get_context

context = get_context()
if sys.argv[1] == "saves":
    checkpoints = Checkpoints("run", is_async=False)
    checkpoints.save({"model": torch.nn.Linear(2, 2)}, step=1, facts={})
    checkpoints.save({"model": torch.nn.Linear(2, 2)}, step=2, facts={})
else:
    data = [(torch.ones(2), 0)] * 4
    TorchTrainer(
        model=torch.nn.Linear(2, 2), data=data, loss="cross_entropy", epochs=1, checkpoint_every=0
    ).fit()
print("ready", flush=True)
while not context.preemption.is_announced:
    time.sleep(0.01)
print("noticed", flush=True)
while True:
    time.sleep(0.01)
"""


def start_loop(how, grace_s, program=LOOP, cwd=None):
    env = {**os.environ, names.GRACE: str(grace_s)}
    return subprocess.Popen(
        [sys.executable, "-c", program, how],
        cwd=cwd,
        env=env,
        text=True,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )


def notice(process):
    while (line := process.stdout.readline()) != "ready\n":
        assert line, "it has ended"
    process.send_signal(signal.SIGTERM)
    assert process.stdout.readline() == "noticed\n"


def test_second_signal_ends_a_loop_that_never_checks():
    with start_loop("never looks", 600) as process:
        notice(process)
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == -signal.SIGTERM


@pytest.mark.long
@pytest.mark.parametrize("how", ["saves", "fits"])
def test_second_signal_ends_a_loop_that_saves_or_follows_a_training(tmp_path, how):
    with start_loop(how, 600, AFTER, tmp_path) as process:
        notice(process)
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == -signal.SIGTERM


def test_end_of_grace_ends_a_loop_that_never_checks():
    with start_loop("never looks", 0.2) as process:
        notice(process)
        assert process.wait(60) == -signal.SIGTERM


def test_loop_that_checks_ends_by_itself():
    with start_loop("reads", 0.01) as process:
        notice(process)
        process.send_signal(signal.SIGTERM)
        process.stdin.write("\n")
        process.stdin.flush()
        assert process.wait(60) == 7


def test_children_do_not_inherit_the_notice():
    with start_loop("child", 600) as process:
        assert process.wait(60) == 1
