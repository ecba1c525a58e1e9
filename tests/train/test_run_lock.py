"""Lock of a run, which prevents two trainers at once, and its takeover from processes presumed dead."""

from __future__ import annotations

import dataclasses
import fcntl
import logging
import os
import signal
import subprocess
import sys
import textwrap

import pytest
from toy_training import fill, make_state, make_trainer

from windlass import names
from windlass.errors import EngineError, SpecError
from windlass.train.checkpoint import run_lock
from windlass.train.checkpoint.checkpoint_storage import open_storage
from windlass.train.checkpoint.checkpoints import Checkpoints
from windlass.train.preemption import Preemption

HOLDER = """
    import sys
    from windlass.train.checkpoint.checkpoint_storage import open_storage
    from windlass.train.checkpoint import run_lock
    from windlass.train.preemption import Preemption

    run_lock._RENEW_S = 0.05  # of a lease
    lock = run_lock.take_run(open_storage(sys.argv[1]), job="", attempt=0, preemption=Preemption())
    print("held", flush=True)
    sys.stdin.read()
    lock.close()
"""


@pytest.fixture(autouse=True)
def short_waits(monkeypatch):
    monkeypatch.setattr(run_lock, "_HERE_S", 0.3)
    monkeypatch.setattr(run_lock, "_ELSEWHERE_S", 0.3)


@pytest.fixture
def hold():
    """Hold a run in another process until its standard input is closed."""
    holders = []

    def start(root):
        holder = subprocess.Popen(
            [sys.executable, "-c", textwrap.dedent(HOLDER), str(root)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        holders.append(holder)
        assert holder.stdout.readline() == "held\n"
        return holder

    yield start
    for holder in holders:
        holder.kill()
        holder.communicate()


def take(root, *, job="", attempt=0, preemption=None):
    return run_lock.take_run(
        open_storage(root), job=job, attempt=attempt, preemption=preemption or Preemption()
    )


@pytest.mark.parametrize("place", ["{}", "file://{}"])
def test_a_second_training_of_a_run_is_refused(tmp_path, alone, hold, caplog, place):
    run = place.format(tmp_path / "run")
    holder = hold(run)
    checkpoints = Checkpoints(run, is_async=False, context=alone)
    named = f"another training writes to .*: process {holder.pid} on"
    with pytest.raises(SpecError, match=named):
        checkpoints.save(make_state(), step=1, facts={})
    assert "waiting for its end" in caplog.text
    assert not list((tmp_path / "run").glob("step-*"))
    holder.communicate()
    checkpoints.save(make_state(), step=1, facts={})
    checkpoints.close()


def test_lock_of_a_killed_training_is_free(tmp_path, hold, caplog):
    for place in (str(tmp_path / "run"), f"file://{tmp_path}/url"):
        holder = hold(place)
        holder.kill()
        holder.wait()
        take(place).close()
    assert not caplog.records


def test_readers_of_a_run_cannot_lock_it(tmp_path):
    """A user with only read access to a run cannot block its owner's training."""
    tmp_path.chmod(0o755)
    take(tmp_path).close()
    assert (tmp_path / run_lock.LOCK).stat().st_mode & 0o777 == 0o600
    folder = os.open(tmp_path, os.O_RDONLY)
    fcntl.flock(folder, fcntl.LOCK_SH)
    take(tmp_path).close()
    os.close(folder)
    tmp_path.chmod(0o775)  # group members may train here
    take(tmp_path).close()
    assert (tmp_path / run_lock.LOCK).stat().st_mode & 0o777 == 0o660


def test_a_link_in_place_of_the_lock_is_not_followed(tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / run_lock.LOCK).symlink_to(tmp_path / "elsewhere")
    with pytest.raises(OSError, match="symbolic link"):
        take(tmp_path / "run")
    assert not (tmp_path / "elsewhere").exists()


def test_process_of_another_container_is_not_presumed_dead(tmp_path):
    """Containers can share a host name, and each numbers its processes separately."""
    lock = take(f"file://{tmp_path}")
    owner = run_lock.read_owner(open_storage(f"file://{tmp_path}"))
    lock.close()
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    owner = dataclasses.replace(owner, pid=gone.pid)
    assert owner.is_dead
    assert not dataclasses.replace(owner, pid_space="of another container").is_dead


def test_sigterm_ends_the_wait(tmp_path, hold):
    hold(tmp_path)
    preemption = Preemption()
    preemption.notice()
    with pytest.raises(SystemExit) as ended:
        take(tmp_path, preemption=preemption)
    assert ended.value.code == 143


def test_child_that_outlives_its_trainer_does_not_hold_the_lock(tmp_path):
    lock = take(tmp_path)
    ends, starts = os.pipe(), os.pipe()
    child = os.fork()
    if not child:
        os.write(starts[1], b"x")
        os.close(ends[1])
        os.read(ends[0], 1)  # until the trainer has released the lock
        os._exit(0)
    os.read(starts[0], 1)
    with pytest.raises(SpecError, match="another training"):
        take(tmp_path, attempt=1)  # the trainer still holds it
    lock.close()
    take(tmp_path, attempt=1).close()
    os.close(ends[1])
    os.waitpid(child, 0)


def test_one_process_shares_the_lock(tmp_path):
    first, second = take(tmp_path), take(tmp_path)
    first.close()
    with pytest.raises(SpecError, match="another training"):
        take(tmp_path, attempt=1)
    second.close()
    take(tmp_path, attempt=1).close()


@pytest.mark.parametrize("place", ["{}", "file://{}"])
def test_attempt_presumed_dead_publishes_nothing(tmp_path, alone, monkeypatch, caplog, place):
    """The launcher has started another attempt, which takes over the run. The first attempt then ends."""
    monkeypatch.setenv(names.JOB_ID, "job-1")
    run = place.format(tmp_path / "run")
    stale = Checkpoints(run, is_async=False, context=alone)
    stale.save(fill(make_state(), 1), step=1, facts={})
    live = Checkpoints(run, is_async=False, context=dataclasses.replace(alone, attempt=1))
    live.save(fill(make_state(), 2), step=2, facts={})
    assert ("taking the run over" in caplog.text) == ("://" not in run)
    with pytest.raises(EngineError, match=r"attempt 1 of job job-1, .* has taken over"):
        stale.save(fill(make_state(), 3), step=3, facts={})
    stale.mark_best(1, 0.5)
    assert not (tmp_path / "run/best.json").exists()
    assert sorted(p.name for p in (tmp_path / "run").glob("step-*")) == ["step-1", "step-2"]
    live.save(fill(make_state(), 4), step=4, facts={})
    assert live.load(make_state()).step == 4
    live.close()
    stale.close()


def test_run_moved_during_training_is_not_recreated(tmp_path, alone):
    checkpoints = Checkpoints(tmp_path / "run", is_async=False, context=alone)
    checkpoints.save(make_state(), step=1, facts={})
    (tmp_path / "run").rename(tmp_path / "moved")
    with pytest.raises(EngineError, match="it was moved or removed"):
        checkpoints.save(make_state(), step=2, facts={})
    assert not (tmp_path / "run").exists()


def test_trainer_holds_the_lock_while_training(tmp_path, hold):
    hold(tmp_path / "run")
    with pytest.raises(SpecError, match="another training writes to"):
        make_trainer(tmp_path).fit()
    make_trainer(tmp_path, checkpoint_every=0).fit()  # this trainer writes no checkpoints


def test_no_resume_moves_the_old_run_aside(tmp_path, caplog):
    first = make_trainer(tmp_path, epochs=1).fit()
    caplog.set_level(logging.WARNING)
    second = make_trainer(tmp_path, epochs=1, resume=False).fit()
    assert second.resumed_from is None
    old = tmp_path / "run.old-1"
    assert f"moved to {old}" in caplog.text
    assert (old / f"step-{first.step}/manifest.json").exists()
    assert (old / "metrics.jsonl").exists()
    assert make_trainer(tmp_path, epochs=1).fit().resumed_from == second.step


@pytest.mark.long
def test_the_writer_process_keeps_the_lock(tmp_path, alone):
    """The writer may still write briefly after its trainer was killed."""
    script = f"""
        import os, signal, torch
        from windlass.train.checkpoint.checkpoints import Checkpoints

        checkpoints = Checkpoints({str(tmp_path)!r})
        checkpoints.save({{"model": torch.nn.Linear(2, 2)}}, step=1, facts={{}})
        writer = checkpoints._get_writer().process_id
        os.kill(writer, signal.SIGSTOP)
        print(writer, flush=True)
        os.kill(os.getpid(), signal.SIGKILL)
    """
    trainer = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(script)], stdout=subprocess.PIPE, text=True
    )
    writer = int(trainer.stdout.readline())
    trainer.wait()
    try:
        with pytest.raises(SpecError, match="another training"):
            take(tmp_path)
    finally:
        os.kill(writer, signal.SIGKILL)
        trainer.communicate()
