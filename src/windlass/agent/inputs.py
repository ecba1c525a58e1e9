"""What a node needs before its ranks can start: the bundle and the payload, whole and unpacked.

They come with the plan where they fit, else over the link. Each is checked against the plan's hash.
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
    """The inputs of one node."""

    def __init__(self, plan: Plan, folder: JobFolder) -> None:
        self._folder = folder
        self._waiting = {wanted.name: wanted for wanted in plan.inputs}

    @property
    def is_ready(self) -> bool:
        return not self._waiting

    def lacks(self, name: str) -> bool:
        """Whether it is wanted, and not here yet."""
        return name in self._waiting

    def find(self, where: Path) -> None:
        """Take those that lie in `where`."""
        for name, wanted in list(self._waiting.items()):
            if (where / name).exists():
                self._take(wanted, where / name)

    def arrived(self, name: str) -> bool:
        """One came over the link; whether it was the last one missing."""
        wanted = self._waiting.get(name)
        if wanted is not None:
            path = self._folder.path / name
            try:
                self._take(wanted, path)
            except BundleError:
                path.unlink()  # or it would be sent on, and stand in the way of the right one
                raise
        return wanted is not None and self.is_ready

    def _take(self, wanted: Input, path: Path) -> None:
        sha256 = _hash(path)
        if sha256 != wanted.sha256:
            raise BundleError(f"{wanted.name} is not the one that was planned", hint="submit again")
        if wanted.name == names.BUNDLE_FILE:
            # tarfile and more, of which local nodes have no need
            from windlass.bundle.archive import extract

            with path.open("rb") as archive:
                extract(archive, self._folder.code)
        elif path.parent != self._folder.path:
            (self._folder.path / wanted.name).symlink_to(path)
        del self._waiting[wanted.name]
        logger.info("%s is here, %s bytes", wanted.name, wanted.size_bytes)


def _hash(path: Path) -> str:
    import hashlib

    digest = hashlib.sha256()
    with path.open("rb") as file:
        while data := file.read(1 << 20):
            digest.update(data)
    return digest.hexdigest()
