"""Retention of checkpoints, and the links and pointers to them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from toy_training import fill, make_state

from windlass.train.checkpoint.checkpoint_commit import BestStep
from windlass.train.checkpoint.checkpoints import Checkpoints

SUPPORT = str(Path(__file__).parents[1] / "support")


@pytest.fixture
def checkpoints(tmp_path, alone):
    return Checkpoints(tmp_path, keep=2, is_async=False, context=alone)


def steps(folder):
    return sorted(int(path.name.removeprefix("step-")) for path in folder.glob("step-*"))


def save(checkpoints, *all_steps, **more):
    for step in all_steps:
        checkpoints.save(fill(make_state(), step), step=step, facts={}, **more)


def test_newest_checkpoints_are_kept(checkpoints, tmp_path):
    save(checkpoints, 1, 2, 3)
    assert steps(tmp_path) == [2, 3]
    assert os.readlink(tmp_path / "latest") == "step-3"


def test_best_checkpoint_is_kept_additionally(checkpoints, tmp_path):
    save(checkpoints, 1)
    checkpoints.mark_best(1, 0.5)
    save(checkpoints, 2, 3, 4)
    assert steps(tmp_path) == [1, 3, 4]
    assert os.readlink(tmp_path / "best") == "step-1"
    assert checkpoints.best == BestStep(step=1, value=0.5)


def test_new_best_releases_the_old_best(checkpoints, tmp_path):
    save(checkpoints, 1)
    checkpoints.mark_best(1, 0.5)
    save(checkpoints, 2, 3)
    checkpoints.mark_best(3, 0.25)
    save(checkpoints, 4, 5)
    assert steps(tmp_path) == [3, 4, 5]
    assert checkpoints.best == BestStep(step=3, value=0.25)


def test_incomplete_best_keeps_the_previous_best(checkpoints, tmp_path):
    save(checkpoints, 1)
    checkpoints.mark_best(1, 0.5)
    checkpoints.mark_best(4, 0.25)  # evaluated before its save
    save(checkpoints, 2, 3)
    assert checkpoints.best == BestStep(step=1, value=0.5)
    save(checkpoints, 4)
    assert checkpoints.best == BestStep(step=4, value=0.25)
    assert os.readlink(tmp_path / "best") == "step-4"


def test_epoch_links_are_removed_with_their_step(checkpoints, tmp_path):
    for epoch in range(3):
        save(checkpoints, 10 * epoch, epoch=epoch)
    assert {path.name: os.readlink(path) for path in tmp_path.glob("epoch-*")} == {
        "epoch-1": "step-10",
        "epoch-2": "step-20",
    }


def test_remains_of_a_killed_save_are_removed(checkpoints, tmp_path):
    left = tmp_path / "step-7.tmp-0-abcd/rank-0"
    left.mkdir(parents=True)
    (left / "0.distcp").write_bytes(b"half")
    save(checkpoints, 1)
    assert not left.parent.exists()


def test_replaced_checkpoint_is_restored_if_the_new_one_is_missing(checkpoints, tmp_path):
    """SIGKILL between the two renames leaves this state when a step is saved again."""
    save(checkpoints, 5)
    (tmp_path / "step-5").rename(tmp_path / "step-5.old-abcd")
    (tmp_path / "step-5.tmp-0-abcd").mkdir()
    before = sorted(tmp_path.iterdir())
    assert checkpoints.load(make_state()).step == 5
    assert sorted(tmp_path.iterdir()) == before  # a reader changes nothing
    checkpoints.close()
    checkpoints.claim()
    assert steps(tmp_path) == [5]


def test_partly_removed_checkpoint_is_removed_with_the_next(checkpoints, tmp_path):
    """Retention renames a checkpoint first, so a kill leaves nothing that looks like a checkpoint."""
    script = f"""
        import os, shutil, signal
        from toy_training import make_state
        from windlass.train.checkpoint.checkpoints import Checkpoints

        shutil.rmtree = lambda *_args, **_keywords: os.kill(os.getpid(), signal.SIGKILL)
        checkpoints = Checkpoints({str(tmp_path)!r}, keep=1, is_async=False)
        for step in (1, 2):
            checkpoints.save(make_state(), step=step, facts={{}})
    """
    killed = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)], env={**os.environ, "PYTHONPATH": SUPPORT}
    )
    assert killed.returncode == -signal.SIGKILL
    assert sorted(path.name for path in tmp_path.glob("step-*")) == ["step-1.gone-1", "step-2"]
    assert checkpoints.load(make_state()).step == 2
    checkpoints.claim()
    assert steps(tmp_path) == [2]


def test_pointer_files_replace_unsupported_links(checkpoints, tmp_path, monkeypatch):
    def refuse(*_):
        raise OSError("no links here")

    monkeypatch.setattr(os, "symlink", refuse)
    save(checkpoints, 1, epoch=0)
    checkpoints.mark_best(1, 2.0)
    assert {name: (tmp_path / name).read_text() for name in ("latest", "best", "epoch-0")} == {
        "latest": "step-1",
        "best": "step-1",
        "epoch-0": "step-1",
    }
    assert checkpoints.load(make_state()).step == 1
