"""Asynchronous saves: the copy, the writer process, and the effects of SIGKILL on either side."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import threading
from pathlib import Path

import pytest
import torch
from toy_training import fill, make_state

from windlass.errors import EngineError
from windlass.train.checkpoint.checkpoint_writer import StagingMemory, read_staged
from windlass.train.checkpoint.checkpoints import Checkpoints
from windlass.waiting import wait_until

SUPPORT = Path(__file__).parents[1] / "support"


def test_copy_in_shared_memory_equals_the_original():
    memory = StagingMemory()
    data = {
        "fp32": torch.randn(3, 5),
        "column": torch.randn(4, 6)[:, 1],
        "bf16": torch.randn(7).bfloat16(),
        "scalar": torch.tensor(3),
        "flags": torch.tensor([True, False]),
        "none": torch.empty(0, 4),
        "pickled": b"abc",
    }
    before = {
        name: value if isinstance(value, bytes) else value.clone() for name, value in data.items()
    }
    staged, wait = memory.stage(data, [])
    data["fp32"].zero_()
    wait()
    after = read_staged(memory.file, memory.size, staged)
    assert after.pop("pickled") == before.pop("pickled") == b"abc"
    assert all(torch.equal(after[name], value) for name, value in before.items())
    memory.close()


def test_shared_memory_grows_and_is_reused():
    memory = StagingMemory()
    for size in (10, 5_000_000, 100):
        staged, _ = memory.stage({"x": torch.arange(size)}, [])
        assert torch.equal(read_staged(memory.file, memory.size, staged)["x"], torch.arange(size))
    assert memory.size >= 8 * 5_000_000
    memory.close()


@pytest.fixture
def checkpoints(tmp_path, alone):
    checkpoints = Checkpoints(tmp_path / "run", context=alone, timeout_s=120)
    yield checkpoints
    checkpoints.close()


@pytest.mark.long
def test_asynchronous_saves_and_their_failures(checkpoints, tmp_path, caplog):
    state = make_state()
    checkpoints.prepare(state)
    checkpoints.save(fill(state, 1), step=1, facts={})
    fill(state, 99)  # training continues immediately
    checkpoints.wait()
    assert checkpoints.latest == 1
    assert checkpoints.load(state).step == 1
    assert torch.all(state["model"][0].weight == 1)

    # Killing the writer during a save loses that save, which is reported.
    writer = checkpoints._writer.process_id
    os.kill(writer, signal.SIGSTOP)
    checkpoints.save(fill(state, 2), step=2, facts={})
    os.kill(writer, signal.SIGKILL)
    with pytest.raises(
        EngineError, match=r"a checkpoint was not saved: step-2: .*killed by SIGKILL"
    ):
        checkpoints.wait()
    assert checkpoints.load(state).step == 1

    # A new process writes the next one. The next save reports a failure that no call waited for.
    checkpoints.save(fill(state, 3), step=3, facts={})
    os.kill(checkpoints._writer.process_id, signal.SIGKILL)
    checkpoints.save(fill(state, 4), step=4, facts={})
    assert "a checkpoint was not saved, training continues: step-3" in caplog.text
    checkpoints.wait()
    assert checkpoints.latest == 4

    # A save that exceeds its time limit is abandoned.
    os.kill(checkpoints._writer.process_id, signal.SIGSTOP)
    with pytest.raises(EngineError, match="step-5 was not written in time"):
        checkpoints.save(fill(state, 5), step=5, facts={}, block=True, timeout_s=0.2)
    checkpoints.save(fill(state, 6), step=6, facts={}, block=True)
    assert checkpoints.load(state).step == checkpoints.latest == 6
    assert sorted(path.name for path in (tmp_path / "run").glob("[!.]*")) == [
        "latest",
        "step-4",
        "step-6",
    ]


@pytest.mark.long
def test_saves_faster_than_writes_are_reported_once(checkpoints, caplog):
    state = make_state()
    checkpoints.save(state, step=1, facts={})
    checkpoints.wait()
    for step in (2, 4):
        writer = checkpoints._writer.process_id
        os.kill(writer, signal.SIGSTOP)
        checkpoints.save(state, step=step, facts={})
        later = threading.Timer(1.2, os.kill, (writer, signal.SIGCONT))
        later.start()
        checkpoints.save(state, step=step + 1, facts={})
        later.join()
        checkpoints.wait()
    assert checkpoints.latest == 5
    [reason] = [one.getMessage() for one in caplog.records if "training waited" in one.getMessage()]
    assert "until step-2 was written" in reason


@pytest.mark.long
def test_two_failures_in_a_row_end_the_training(tmp_path, alone):
    checkpoints = Checkpoints(tmp_path / "run", context=alone, timeout_s=120)
    state = make_state()
    checkpoints.save(state, step=1, facts={})
    for step in (2, 3):
        os.kill(checkpoints._get_writer().process_id, signal.SIGSTOP)
        checkpoints.save(state, step=step, facts={})
        os.kill(checkpoints._writer.process_id, signal.SIGKILL)
    with pytest.raises(EngineError, match="2 checkpoints in a row were not saved"):
        checkpoints.save(state, step=4, facts={})
    checkpoints.close()


CRAMPED = """
    import resource, signal, sys, torch
    from concurrent.futures import wait
    from pathlib import Path
    from windlass.errors import EngineError
    from windlass.train.checkpoint.checkpoints import Checkpoints

    def limit(num_bytes):
        resource.prlimit(writer or 0, resource.RLIMIT_FSIZE, (num_bytes, resource.RLIM_INFINITY))

    run, is_async = Path(sys.argv[1]), sys.argv[2] == "async"
    state = {"model": torch.nn.Sequential(torch.nn.Linear(1000, 1000))}  # 4 MB
    checkpoints = Checkpoints(run, is_async=is_async)
    checkpoints.save(state, step=1, facts={})
    checkpoints.wait()
    writer = checkpoints._writer.process_id if is_async else None
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    limit(int(sys.argv[3]))
    checkpoints.mark_best(1, 0.5)
    try:
        checkpoints.save(state, step=2, facts={})
        wait([checkpoints._saving.end])
        assert not list(run.glob("*.tmp-*/rank-0")), "what failed takes no room"
        checkpoints.wait()
    except EngineError as error:
        print(error)
    print(sorted(path.name for path in run.glob("[!.]*")))
    limit(resource.RLIM_INFINITY)
    checkpoints.save(state, step=3, facts={}, block=True)
    print(checkpoints.load(state).step, checkpoints.best.step)
    checkpoints.close()
"""


@pytest.mark.long
@pytest.mark.parametrize("kind", ["async", "blocking"])
@pytest.mark.parametrize("num_bytes", [1_000_000, 0])
def test_save_without_disk_space_is_reported_and_cleaned_up(tmp_path, kind, num_bytes):
    """A file size limit simulates a full disk. With 0 bytes, even the reason cannot be written."""
    reason = "File too large"
    # the trainer marks it if only its writer has the limit
    is_marked = kind == "async" or num_bytes > 0
    done = subprocess.run(
        [
            sys.executable,
            "-c",
            textwrap.dedent(CRAMPED),
            str(tmp_path / "run"),
            kind,
            str(num_bytes),
        ],
        capture_output=True,
        text=True,
    )
    assert done.stdout.splitlines() == [
        f"a checkpoint was not saved: step-2: OSError: [Errno 27] {reason}",
        f"  hint: check that {tmp_path / 'run'} has free space and that all ranks can access it",
        "['best', 'best.json', 'latest', 'step-1']" if is_marked else "['latest', 'step-1']",
        "3 1",
    ], done.stderr
    assert ("step-1 is the best so far, but this could not be recorded" in done.stderr) != is_marked


INTERRUPTED = """
    import sys, time, torch
    from windlass.train.checkpoint.checkpoints import Checkpoints

    checkpoints = Checkpoints(sys.argv[1])
    for step in (1, 2):  # the first is waited for
        checkpoints.save({"model": torch.nn.Linear(3, 3)}, step=step, facts={})
    print("training goes on", flush=True)
    time.sleep(300)
"""


@pytest.mark.long
def test_terminal_interrupt_does_not_stop_a_running_save(tmp_path, alone):
    """A terminal interrupts all processes, and the writer is still importing torch then."""
    trainer = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(INTERRUPTED), str(tmp_path / "run")],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert trainer.stdout.readline() == "training goes on\n"
    (writer,) = Path(f"/proc/{trainer.pid}/task/{trainer.pid}/children").read_text().split()
    assert wait_until(lambda: ignores(writer, signal.SIGINT), timeout_s=60)
    os.killpg(trainer.pid, signal.SIGINT)
    _, error = trainer.communicate(timeout=100)
    assert "KeyboardInterrupt" in error
    model = torch.nn.Linear(3, 3)
    assert (
        Checkpoints(tmp_path / "run", context=alone, is_async=False).load({"model": model}).step
        == 2
    )


def ignores(pid: str, number: signal.Signals) -> bool:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    ignored = dict(line.split(":", 1) for line in lines)["SigIgn"]
    return bool(int(ignored, 16) & (1 << number - 1))


TRAINER = """
    import sys, torch
    from toy_training import fill
    from windlass.train.checkpoint.checkpoints import Checkpoints

    state = {"model": torch.nn.Sequential(torch.nn.Linear(2000, 4000))}  # 32 MB
    checkpoints = Checkpoints(sys.argv[1])
    step = checkpoints.load(state).step if len(sys.argv) > 2 else 0
    while True:
        step += 1
        checkpoints.save(fill(state, step), step=step, facts={})
        print("writer", checkpoints._writer.process_id, flush=True)
"""


def has_ended(pid: int) -> bool:
    """Return whether the process has ended, even if its parent has not reaped it.

    In a container, the first process may never reap it.
    """
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


@pytest.mark.long
def test_a_trainer_killed_in_a_save_loses_only_that_save(tmp_path, alone):
    run = tmp_path / "run"
    trainer = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(TRAINER), str(run)],
        env={**os.environ, "PYTHONPATH": str(SUPPORT)},
        stdout=subprocess.PIPE,
    )
    writer = int(trainer.stdout.readline().split()[1])

    def is_saving():
        return any(run.glob("step-*/manifest.json")) and any(
            run.glob("step-*.tmp-*/rank-0/0.distcp")
        )

    try:
        assert wait_until(is_saving, timeout_s=100, every_s=0.001)
    finally:
        trainer.kill()
        trainer.communicate()
    assert wait_until(lambda: has_ended(writer), timeout_s=60)
    state = {"model": torch.nn.Sequential(torch.nn.Linear(2000, 4000))}
    checkpoints = Checkpoints(run, context=alone, is_async=False)
    loaded = checkpoints.load(state)
    assert torch.all(state["model"][0].weight == loaded.step)
    checkpoints.claim()
    assert not any(run.glob("*.tmp-*"))
