"""Whether all ranks see one and the same folder: asked once, before a save would wait for files in vain.

In pods without a claim every node has a folder of its own under the same name. Called by `checkpoints`.
"""

from __future__ import annotations

import secrets

from windlass.errors import SpecError
from windlass.train.checkpoint_storage import Storage
from windlass.train.context import Context
from windlass.waiting import wait_until

SHARED_HINT = (
    "checkpoints need a folder that all nodes share: mount a claim (--volume CLAIM:/out), or write to "
    "a URL (--out s3://BUCKET/FOLDER); --checkpoint-every 0 trains without"
)
_SLOW_S = 10.0  # a network file system may show a new file a little later


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
