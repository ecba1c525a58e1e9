"""pytorch: ranks as torchrun starts them. torch is imported ahead, its store opened ahead."""

from __future__ import annotations

import os

from windlass.agent.frameworks import python_ranks, torch_store
from windlass.agent.frameworks.framework import Framework, MeetingStore

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection
    from typing import Any

    from windlass.wire.job_folder import JobFolder

_TORCH = "torch"


def _is_store_wanted(preload: Collection[str], num_ranks: int) -> bool:
    # a lone rank may start processes of its own, whose meetings no store of ours must answer
    return _TORCH in preload and num_ranks > 1


def _enter(plan: dict[str, Any], folder: JobFolder, *, rank: int, attempt: int) -> int:
    torch_store.share_store(os.environ)
    return python_ranks.enter(plan, folder, rank=rank, attempt=attempt)


FRAMEWORK = Framework(
    name="pytorch",
    preload=(_TORCH,),
    takes_commands=False,
    gives_list=True,
    count_procs=python_ranks.count_as_asked,
    make_env=python_ranks.make_env,
    make_call_env=python_ranks.make_call_env,
    store=MeetingStore(
        is_wanted=_is_store_wanted,
        serve=torch_store.serve_store,
        share=torch_store.share_store,
    ),
    enter=_enter,
    is_consequence=python_ranks.has_lost_peer,
)
