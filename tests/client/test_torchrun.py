"""What a torchrun line says of its size counts, unless it is said again; then the two must agree."""

from __future__ import annotations

import pytest

from windlass.client.run import prepare
from windlass.errors import SpecError


def size(words: str, **flags):
    plan = prepare(["sh", "-c", words], detach=False, flags=flags).plan
    return len(plan.nodes), plan.nodes[0].num_ranks


@pytest.mark.parametrize(
    ("words", "flags", "found"),
    [
        ("torchrun --nnodes=2 --nproc_per_node=4 t.py", {}, (2, 1)),
        ("torchrun --nnodes 2 --nproc-per-node 4 t.py", {"gpus": 4}, (2, 1)),
        ("torchrun --nnodes=1:3 t.py", {}, (3, 1)),
        ("torchrun --nnodes=1:3 t.py", {"nodes": 2}, (2, 1)),
        ("torchrun --nproc_per_node=4 t.py", {"nodes": 2, "procs": 2}, (2, 2)),
        ("torchrun --standalone --nnodes=1 t.py", {"nodes": 2}, (2, 1)),
        ("python t.py", {"gpus": 2}, (1, 2)),
    ],
)
def test_how_large_a_command_is(words, flags, found):
    assert size(words, **flags) == found


def test_a_contradiction_is_told():
    with pytest.raises(SpecError, match=r"says --nnodes=4, and 2 node\(s\) would run it") as caught:
        size("torchrun --nnodes=4 t.py", nodes=2)
    assert caught.value.hint == "leave --nnodes out, or write --nodes 4"
