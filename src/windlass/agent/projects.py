"""Projects on one node: a folder for each, with files that clients sent and a digest of the content.

Nodes on the client's own machine receive no files, so they have no project folders.
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
    """Manifests of the project folders in the node's code folder."""

    def __init__(self, context: AgentContext) -> None:
        self._folder = context.folder.code
        self._known: dict[str, Manifest] = {}

    def digest(self, key: str) -> str:
        return self._known.get(key, EMPTY).digest

    def digests(self) -> dict[str, str]:
        return {key: manifest.digest for key, manifest in self._known.items()}

    def apply(self, order: SyncCode, body: bytes) -> None:
        """Update a project to a digest. It stays unchanged if that fails."""
        key = order.project
        if not _KEY.fullmatch(key):
            raise BundleError(f"{key!r:.80} is not a valid project key")
        is_whole = order.base == EMPTY.digest
        base = EMPTY if is_whole else self._known.get(key, EMPTY)
        make_own(self._folder)
        self._known[key] = extract(
            io.BytesIO(body), self._folder / key, base=base, expected=order.digest
        )

    def pack(self, key: str) -> bytes:
        """Return the whole project as an archive, for a node that does not have it yet."""
        from windlass.bundle.archive import write_archive

        packed = io.BytesIO()
        delta = make_delta(EMPTY, self._known.get(key, EMPTY))
        write_archive(self._folder / key, delta, packed, level=1)
        return packed.getvalue()
