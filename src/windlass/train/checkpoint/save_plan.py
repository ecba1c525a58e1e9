"""What ranks settle together before they save: who writes what, and that all see one folder.

DCP's plan of a save is made once for all ranks and kept while the state keeps its form. A rank that holds a
copy of what others hold too (DDP) writes its part of it only. Every rank works out the whole plan from the
local plans of all, so nothing has to be handed back.

Whether the folder is the same for all is asked once, before a save would wait for files in vain: in pods
without a claim every node has a folder of its own under the same name. Called by checkpoints.py only.
"""

from __future__ import annotations

import secrets
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

from windlass.errors import SpecError
from windlass.train.checkpoint.checkpoint_storage import Storage
from windlass.train.checkpoint.state_json import decode, encode, record
from windlass.train.parallel.context import Context
from windlass.waiting import wait_until

SHARED_HINT = (
    "checkpoints need a folder that all nodes share: mount a claim (--volume CLAIM:/out), or write to "
    "a URL (--out s3://BUCKET/FOLDER); --checkpoint-every 0 trains without"
)
_SLOW_S = 10.0  # a network file system may show a new file a little later


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


def check_shared(storage: Storage, context: Context) -> None:
    """Refuse a folder that is not the same for all ranks; on every rank. All must call it."""
    if context.world_size == 1:
        return
    name, error = f".shared-{secrets.token_hex(4)}", ""
    if context.is_main:
        try:
            storage.write(name, b"")
        except OSError as refused:
            error = str(refused)
    name, error = context.broadcast((name, error))
    if error:
        raise SpecError(f"{storage.root} cannot be written: {error}", hint=SHARED_HINT)
    is_seen = wait_until(lambda: storage.size(name) is not None, timeout_s=_SLOW_S)
    blind = [node for node, sees in context.gather((context.node, is_seen)) if not sees]
    if context.is_main:
        storage.remove(name)
    if blind:
        raise SpecError(
            f"{storage.root} is not the same folder on node {blind[0]} as where rank 0 is",
            hint=SHARED_HINT,
        )
