"""What the fork server imports ahead: torch, when the work will want it.

Read from the source without running it: the imports of the script, and of the project's files that it
imports. Nothing but torch is preloaded unasked, since other libraries read a rank's variables when they load.
Nor is torch's compiler, though wrapping a model for data-parallel training imports it: where it was imported
ahead, such a model is freed as its function returns, which deadlocks with gloo's threads every few runs.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

from windlass.client.jobs.project_imports import (
    find_module,
    is_of_train,
    read_imports,
    walk_imports,
)

TORCH = ("torch",)
# what the training library imports when it saves and shards: a restart imports nothing then
TRAINING = (*TORCH, "torch.distributed.checkpoint", "torch.distributed.fsdp")

_IS_TORCH = re.compile(r"torch(?![\w.-])", re.IGNORECASE)  # and not torchvision, torch-geometric


def choose_preload(script: Path) -> tuple[str, ...]:
    """What to import ahead for a script, judged by it and by the files of the project that it imports.

    The search ends at the first import that leads to torch; the training library is looked for up to there,
    and in all of the script itself.
    """
    root = script.parent  # where absolute imports start
    if any(level == 0 and is_of_train(name) for name, level in read_imports(script)):
        return TRAINING
    asked: set[str] = set()
    for name, level in walk_imports(script, root):
        if level == 0 and is_of_train(name):
            return TRAINING
        top = name.partition(".")[0]
        if level or top in asked:
            continue
        asked.add(top)
        if top == "torch" or _needs_torch(top, root):
            return TORCH
    return ()


def _needs_torch(name: str, root: Path) -> bool:
    """Whether an installed package of that name asks for torch."""
    if name in sys.stdlib_module_names or name == "windlass" or any(find_module(name, root)):
        return False
    import importlib.metadata  # slow to import, and seldom needed

    try:
        requires = importlib.metadata.requires(name) or []
    except importlib.metadata.PackageNotFoundError:
        return False
    return any(_IS_TORCH.match(line) for line in requires)
