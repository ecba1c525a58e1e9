"""Logs of a training run: a resumed run logs the same means, and a kill loses nothing."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from toy_training import make_trainer

from windlass.train import Callback, Preempted


@pytest.mark.parametrize("stop_at", [1, 4, 6])
def test_resumed_training_logs_the_same_means(tmp_path, stop_at):
    """The run may stop between two logs, or at a log that was not written yet."""

    class Stop(Callback):
        def on_step(self, trainer, step):
            if step.index + 1 == stop_at:
                trainer.context.preemption.notice()

    settings = {"log_every": 4, "checkpoint_epochs": False, "epochs": 2}
    make_trainer(tmp_path / "whole", **settings).fit()
    cut = make_trainer(tmp_path / "cut", **settings)
    cut.callbacks.append(Stop())
    try:
        with pytest.raises(Preempted):
            cut.fit()
    finally:
        cut.context.preemption._deadline_s = None
    assert make_trainer(tmp_path / "cut", **settings).fit().resumed_from == stop_at
    whole, resumed = read_losses(tmp_path / "whole"), read_losses(tmp_path / "cut")
    assert [step for step, _ in whole] == [4, 8, 10]
    assert resumed == whole


def read_losses(out: Path) -> list[tuple[int, float]]:
    """Return the losses of metrics.jsonl in order."""
    lines = (out / "run/metrics.jsonl").read_text().splitlines()
    records = [json.loads(line) for line in lines]
    return [(r["step"], r["metrics"]["loss"]) for r in records if r["event"] == "metrics"]


KILLED = """
import os, signal, sys
sys.path.insert(0, {support!r})
from toy_training import make_trainer
from windlass.train import Callback

class Kill(Callback):
    def on_checkpoint(self, trainer, step):
        if step == 8:
            os.kill(os.getpid(), signal.SIGKILL)

trainer = make_trainer({out!r}, log_every=4, checkpoint_every=4)
trainer.callbacks.append(Kill())
trainer.fit()
"""


@pytest.mark.long
def test_logs_before_a_checkpoint_survive_a_kill(tmp_path):
    code = KILLED.format(support=str(Path(__file__).parents[1] / "support"), out=str(tmp_path))
    ended = subprocess.run([sys.executable, "-c", code], check=False, timeout=120)
    assert ended.returncode == -signal.SIGKILL
    assert [step for step, _ in read_losses(tmp_path)] == [4, 8]
