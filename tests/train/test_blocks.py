"""Layers that are sharded, compiled and checkpointed one by one, which are those that are called."""

from __future__ import annotations

import pytest
from torch import nn

from windlass.errors import SpecError
from windlass.train.parallel.strategies import find_blocks


class Nested(nn.Module):
    """Lists of lists, as in a UNet, and a layer that appears twice."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(1, 1)
        shared = nn.Linear(4, 4)
        named = nn.ModuleDict({"a": nn.Linear(5, 5)})
        self.downs = nn.ModuleList(
            [nn.ModuleList([nn.Linear(2, 2), nn.Linear(3, 3)]), named, shared, shared]
        )


def test_items_of_nested_lists_are_blocks_and_lists_are_not():
    blocks = find_blocks(Nested())
    assert [block.in_features for block in blocks] == [2, 3, 5, 4]


def test_blocks_inside_others_come_first():
    inner = nn.Sequential(nn.Linear(1, 1))
    outer = nn.Sequential(inner, nn.Linear(2, 2))
    assert find_blocks(nn.ModuleList([outer]), ["Sequential"]) == [inner, outer]


def test_missing_class_is_named():
    with pytest.raises(SpecError, match="no module of class Liner"):
        find_blocks(Nested(), ["Liner"])
