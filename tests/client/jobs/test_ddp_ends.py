"""Functions with a DDP model that end with `destroy_process_group()`. They end every time.

torch deadlocks if such a model is freed on return while gloo's threads wait for the interpreter. This runs
fifty-four functions, and each pair of ranks is a separate group.
"""

from __future__ import annotations

import pytest
from ddp_pairs import train_in_pairs

import windlass as wl

NUM_RANKS = 18


@pytest.fixture
def folder(tmp_path):
    return str(tmp_path)


@pytest.mark.crowd
@pytest.mark.timeout(400)
@pytest.mark.parametrize("way", ["run", "submit", "call"])
def test_every_function_ends(folder, way):
    if way == "run":
        ended = wl.run(train_in_pairs, [folder], procs=NUM_RANKS, quiet=True)
    elif way == "submit":
        ended = wl.submit(train_in_pairs, [folder], procs=NUM_RANKS).results(timeout_s=300)
    else:
        compute = wl.Compute(name="ddp-ends", engine="local")
        remote = wl.fn(train_in_pairs).to(compute).distribute("pytorch", procs=NUM_RANKS)
        ended = remote(folder, timeout=300)
        compute.teardown()
    assert ended == list(range(NUM_RANKS))
