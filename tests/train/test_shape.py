"""Notation of shapes, and the meshes they describe at a given world size."""

from __future__ import annotations

import pytest

from windlass.errors import SpecError
from windlass.train.parallel.shape import Shape, read_shape


@pytest.mark.parametrize(
    ("text", "world_size", "shape"),
    [
        ("none", 1, Shape()),
        ("", 1, Shape()),
        ("ddp", 1, Shape()),
        ("ddp", 4, Shape(dp=4)),
        ("FSDP", 8, Shape(fsdp=8)),
        ("fsdp=8,dp=2", 16, Shape(dp=2, fsdp=8)),
        ("fsdp=4", 8, Shape(dp=2, fsdp=4)),
        ("fsdp=2, tp=4", 8, Shape(fsdp=2, tp=4)),
        ("deepspeed", 2, Shape(dp=2, is_deepspeed=True)),
    ],
)
def test_read(text: str, world_size: int, shape: Shape) -> None:
    assert read_shape(text, world_size=world_size) == shape


def test_hsdp_shards_within_a_node_and_replicates_across() -> None:
    assert read_shape("hsdp", world_size=16, local_world_size=8) == Shape(dp=2, fsdp=8)


@pytest.mark.parametrize(
    ("text", "world_size", "message", "hint"),
    [
        ("fdsp", 2, "unknown strategy 'fdsp'", "did you mean fsdp?"),
        ("fsdp=3,dp=2", 4, "needs 6 ranks, but there are 4", "omit dp"),
        ("fsdp=0", 4, "invalid axis size 'fsdp=0'", "fsdp=8,dp=2"),
        ("dp=2,dp=2", 4, "invalid axis size 'dp=2'", ""),
        ("none", 2, "independent models", "ddp"),
        ("pp=2", 2, "unknown axis 'pp'", "fsdp=8,dp=2"),
    ],
)
def test_invalid_shapes_have_a_hint(text: str, world_size: int, message: str, hint: str) -> None:
    with pytest.raises(SpecError) as caught:
        read_shape(text, world_size=world_size)
    assert message in caught.value.message
    assert hint in caught.value.hint


def test_shape_text_round_trips() -> None:
    assert str(Shape(dp=2, fsdp=8)) == "dp=2,fsdp=8"
    assert str(Shape()) == "none"
    assert Shape(dp=2, fsdp=4, tp=2).data_ranks == 8
