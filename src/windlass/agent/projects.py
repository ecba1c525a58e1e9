"""The projects on one node: a folder each, the files that clients sent, and what of them is there by digest.

Where nodes share the client's machine nothing is ever sent, and nothing lies here.
"""

from __future__ import annotations

import io
import re

from windlass.agent.agent_context import AgentContext
from windlass.bundle.archive import extract
from windlass.bundle.manifest import EMPTY, Manifest, make_delta
from windlass.errors import BundleError
from windlass.trusted import make_own
from windlass.wire.messages.computes import SyncCode

_KEY = re.compile(r"[a-z0-9][a-z0-9-]{0,62}")


class Projects:
    """Manifests of what lies in the folders below the node's code."""

    def __init__(self, context: AgentContext) -> None:
        self._folder = context.folder.code
        self._known: dict[str, Manifest] = {}

    def digest(self, key: str) -> str:
        return self._known.get(key, EMPTY).digest

    def digests(self) -> dict[str, str]:
        return {key: manifest.digest for key, manifest in self._known.items()}

    def apply(self, order: SyncCode, body: bytes) -> None:
        """Bring a project to a digest; on an error it is as before."""
        key = order.project
        if not _KEY.fullmatch(key):
            raise BundleError(f"{key!r:.80} is not the key of a project")
        is_whole = order.base == EMPTY.digest
        base = EMPTY if is_whole else self._known.get(key, EMPTY)
        make_own(self._folder)
        self._known[key] = extract(
            io.BytesIO(body), self._folder / key, base=base, expected=order.digest
        )

    def pack(self, key: str) -> bytes:
        """The whole project as an archive, for a node that has nothing of it."""
        from windlass.bundle.archive import write_archive

        packed = io.BytesIO()
        delta = make_delta(EMPTY, self._known.get(key, EMPTY))
        write_archive(self._folder / key, delta, packed, level=1)
        return packed.getvalue()
