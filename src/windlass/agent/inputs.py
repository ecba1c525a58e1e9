"""Inputs that a node needs before its ranks can start: the unpacked bundle and the payload.

They arrive with the plan if they are small enough, else over the link. Each is checked against the hash in
the plan.
"""

from __future__ import annotations

import logging
from pathlib import Path

from windlass import names
from windlass.errors import BundleError
from windlass.plan.plan import Input, Plan
from windlass.wire.job_folder import JobFolder

logger = logging.getLogger(__name__)


class Inputs:
    """Inputs of one node, and which of them are missing."""

    def __init__(self, plan: Plan, folder: JobFolder) -> None:
        self._folder = folder
        self._waiting = {wanted.name: wanted for wanted in plan.inputs}

    @property
    def is_ready(self) -> bool:
        return not self._waiting

    def lacks(self, name: str) -> bool:
        """Return whether an input is needed and has not arrived yet."""
        return name in self._waiting

    def find(self, where: Path) -> None:
        """Use the inputs that exist in `where`."""
        for name, wanted in list(self._waiting.items()):
            if (where / name).exists():
                self._take(wanted, where / name)

    def arrived(self, name: str) -> bool:
        """Use an input that arrived over the link. Return whether all inputs are now complete."""
        wanted = self._waiting.get(name)
        if wanted is not None:
            path = self._folder.path / name
            try:
                self._take(wanted, path)
            except BundleError:
                path.unlink()  # otherwise it would be sent to other nodes and block the correct file
                raise
        return wanted is not None and self.is_ready

    def _take(self, wanted: Input, path: Path) -> None:
        sha256 = _hash(path)
        if sha256 != wanted.sha256:
            raise BundleError(
                f"{wanted.name} differs from the one in the plan", hint="submit the job again"
            )
        if wanted.name == names.BUNDLE_FILE:
            # imported late, because local nodes do not need tarfile and its imports
            from windlass.bundle.archive import extract

            with path.open("rb") as archive:
                extract(archive, self._folder.code)
        elif path.parent != self._folder.path:
            (self._folder.path / wanted.name).symlink_to(path)
        del self._waiting[wanted.name]
        logger.info("received %s, %s bytes", wanted.name, wanted.size_bytes)


def _hash(path: Path) -> str:
    import hashlib

    digest = hashlib.sha256()
    with path.open("rb") as file:
        while data := file.read(1 << 20):
            digest.update(data)
    return digest.hexdigest()
