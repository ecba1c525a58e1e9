"""Two trainings that write to one run, and one after the other."""

from __future__ import annotations

import os

from toy_training import make_trainer

from windlass.train.run_lock import RunLock


def test_a_second_training_of_a_run_is_warned(tmp_path, caplog):
    first = RunLock(str(tmp_path))
    assert not caplog.records
    RunLock(str(tmp_path)).close()
    assert f"another training writes to {tmp_path}" in caplog.text
    caplog.clear()
    first.close()
    RunLock(str(tmp_path)).close()
    assert not caplog.records


def test_a_child_that_outlives_its_trainer_does_not_hold_it(tmp_path, caplog):
    lock = RunLock(str(tmp_path))
    ends, starts = os.pipe(), os.pipe()
    child = os.fork()
    if not child:
        os.write(starts[1], b"x")
        os.close(ends[1])
        os.read(ends[0], 1)  # until the trainer has let go of it
        os._exit(0)
    os.read(starts[0], 1)
    RunLock(str(tmp_path)).close()
    assert "another training" in caplog.text  # the trainer's own
    caplog.clear()
    lock.close()
    RunLock(str(tmp_path)).close()
    assert not caplog.records
    os.close(ends[1])
    os.waitpid(child, 0)


def test_where_there_is_no_lock_to_be_had_nothing_is_said(tmp_path, caplog):
    (tmp_path / "file").touch()
    RunLock(str(tmp_path / "file/run")).close()
    assert not caplog.records


def test_a_trainer_holds_it_while_it_trains(tmp_path, caplog):
    trainer = make_trainer(tmp_path)
    other = RunLock(str(tmp_path / "run"))
    trainer.fit()
    assert "another training writes to" in caplog.text
    caplog.clear()
    other.close()
    make_trainer(tmp_path).fit()
    make_trainer(tmp_path).fit()
    assert "another training" not in caplog.text
