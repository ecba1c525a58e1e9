"""Who writes what: DCP's plan of a save, made once for all ranks and kept while the state keeps its form.

A rank that holds a copy of what others hold too (DDP) writes its part of it only. Every rank works out the
whole plan from the local plans of all, so nothing has to be handed back. Called by checkpoints.py only.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    TensorProperties,
)
from torch.distributed.checkpoint.planner import (
    BytesIOWriteData,
    SavePlan,
    TensorWriteData,
    WriteItem,
    WriteItemType,
)

from windlass.train.checkpoint_json import decode, encode, record
from windlass.train.context import Context

for _kind in (
    *(SavePlan, WriteItem, WriteItemType, TensorWriteData, BytesIOWriteData),
    *(ChunkStorageMetadata, MetadataIndex, TensorProperties),
):
    record(_kind)


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedSave:
    """This rank's part of a save, with its data still in the objects they belong to."""

    plan: SavePlan
    metadata: Metadata
    data: dict[MetadataIndex, torch.Tensor | bytes]

    @property
    def num_bytes(self) -> int:
        return sum(
            len(value) if isinstance(value, bytes) else value.nbytes for value in self.data.values()
        )


class SavePlans:
    """Makes the plan of each save; the last one is kept."""

    def __init__(self) -> None:
        self._local: SavePlan | None = None
        self._own: SavePlan | None = None
        self._metadata: Metadata | None = None
        self._planner = DefaultSavePlanner(flatten_state_dict=False)

    def look(self, table: dict[str, Any], *, rank: int) -> bool:
        """Take in a state's table; whether the last plan of this rank fits it."""
        self._planner = DefaultSavePlanner(flatten_state_dict=False)
        self._planner.set_up_planner(table, is_coordinator=rank == 0)
        local = self._planner.create_local_plan()
        is_known = self._local is not None and local.items == self._local.items
        self._local = local
        return is_known

    def plan(self, context: Context, *, is_known: bool) -> PlannedSave:
        """The plan for the table that was looked at. With `is_known` on all ranks, nothing is exchanged."""
        if not is_known or self._own is None or self._metadata is None:
            told = context.gather(encode(self._local, name="plan").decode())
            local = [decode(text, name="plan") for text in told]
            plans, self._metadata = self._planner.create_global_plan(local)
            self._own = plans[context.rank]
        data = {}
        for item in self._own.items:
            value = self._planner.resolve_data(item)
            data[item.index] = (
                value.detach() if isinstance(value, torch.Tensor) else value.getvalue()
            )
        return PlannedSave(plan=self._own, metadata=self._metadata, data=data)
