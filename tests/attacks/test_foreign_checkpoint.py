"""Attack: another user of the machine has prepared a run in a folder that all users may write to."""

from __future__ import annotations

import hashlib
import json
import os
import pickle
import shutil

import pytest
import torch
from toy_training import make_trainer

from windlass.errors import SpecError
from windlass.train.checkpoint.checkpoints import Checkpoints

OTHER_UID = 65534
pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="makes files of another user")


class Evil:
    def __init__(self, mark):
        self.mark = mark

    def __reduce__(self):
        return (os.mkdir, (str(self.mark),))


@pytest.fixture
def shared(tmp_path):
    """Create a folder that all users may write to, like /tmp."""
    folder = tmp_path / "shared"
    folder.mkdir()
    folder.chmod(0o1777)
    return folder


def prepare(run, mark):
    step = run / "step-999"
    step.mkdir(parents=True)
    data = pickle.dumps(Evil(mark))
    (step / ".metadata").write_bytes(data)
    facts = {"size": len(data), "sha256": hashlib.sha256(data).hexdigest()}
    manifest = {"step": 999, "epoch": 1, "number": 10**9, "attempt": 0, "world_size": 1}
    manifest |= {"facts": {}, "files": {".metadata": facts}, "torch": "x", "format": 1}
    (step / "manifest.json").write_text(json.dumps(manifest))


def give_away(path):
    for one in (path, *path.rglob("*")):
        os.chown(one, OTHER_UID, OTHER_UID, follow_symlinks=False)


def test_run_of_another_user_is_refused_by_name(shared):
    mark, run = shared / "mark", shared / "run"
    prepare(run, mark)
    give_away(run)
    checkpoints = Checkpoints(run, is_async=False)
    state = {"model": torch.nn.Linear(2, 2)}
    with pytest.raises(SpecError, match=rf"{run} belongs to .*uid 65534(.|\n)*--trust-checkpoint"):
        checkpoints.load(state)
    with pytest.raises(SpecError, match=rf"{run} belongs to .*refusing to save to it"):
        checkpoints.save(state, step=1, facts={})
    assert not mark.exists()


@pytest.mark.parametrize("resume", [True, False])
def test_training_does_not_write_through_a_prepared_link(shared, resume):
    """Without the check, the metrics would be appended to a file of the victim."""
    run, victim = shared / "run", shared / "victim"
    victim.write_text("")
    run.mkdir()
    (run / "metrics.jsonl").symlink_to(victim)
    give_away(run)
    trainer = make_trainer(shared, checkpoint_every=0, resume=resume)
    with pytest.raises(SpecError, match=rf"{run} belongs to .*uid 65534(.|\n)*--trust-checkpoint"):
        trainer.fit()
    assert not victim.read_text()


def test_step_of_another_user_in_our_run_is_refused(shared):
    mark, run = shared / "mark", shared / "run"
    state = {"model": torch.nn.Linear(2, 2)}
    checkpoints = Checkpoints(run, is_async=False)
    checkpoints.save(state, step=1, facts={})
    prepare(run, mark)
    give_away(run / "step-999")
    with pytest.raises(SpecError, match=rf"{run}/step-999 belongs to"):
        checkpoints.load(state)
    checkpoints.load(state, step=1)
    give_away(run / "step-1/rank-0")  # a single file is enough
    shutil.rmtree(run / "step-999")
    with pytest.raises(SpecError, match=r"step-1/rank-0/.* belongs to"):
        checkpoints.load(state)


def test_trust_accepts_the_owner_and_still_runs_nothing_in_metadata(shared):
    mark, run = shared / "mark", shared / "run"
    Checkpoints(run, is_async=False).save({"model": torch.nn.Linear(2, 2)}, step=1, facts={})
    give_away(run)
    state = {"model": torch.nn.Linear(2, 2)}
    trusting = Checkpoints(run, is_async=False, trust_checkpoint=True)
    assert trusting.load(state).step == 1
    prepare(run, mark)
    assert trusting.load(state).step == 1
    assert not mark.exists()
