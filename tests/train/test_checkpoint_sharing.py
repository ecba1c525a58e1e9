"""Output folders that nodes do not share. Every rank refuses them immediately."""

from __future__ import annotations

import pytest

import windlass as wl


def train(folder):
    """Run a trainer on each rank, whose output folder is either shared or its own."""
    import os

    import torch

    from windlass.train import TorchTrainer

    rank = os.environ["RANK"]
    data = [(torch.ones(2), torch.ones(1))] * 8
    trainer = TorchTrainer(
        model=torch.nn.Linear(2, 1), data=data, loss="mse", batch=4, out=folder.format(rank=rank)
    )
    return trainer.fit().step


@pytest.mark.long
def test_unshared_output_folder_is_refused(tmp_path, home):
    assert wl.run(train, (f"{tmp_path}/same",), nodes=2, quiet=True) == [2, 2]
    assert not list((tmp_path / "same/run").glob(".shared-*"))
    with pytest.raises(
        wl.SpecError, match=r"own-\d/run on node 1 is not the same folder"
    ) as caught:
        wl.run(train, (f"{tmp_path}/own-{{rank}}",), nodes=2, quiet=True)
    assert "mount a claim" in str(caught.value)
