"""Why a call cannot start, as exceptions of the lead's own; clients are told in words."""

from __future__ import annotations

from windlass.wire.status import FailureKind


class MustMake(Exception):
    """The object that a call is for is gone, and only its client can make it anew."""


class NotReady(Exception):
    """A call cannot start, and why; `node` is the one to blame, if one is; `hint` says what to do."""

    kind = FailureKind.START_FAILED

    def __init__(self, why: str, node: int | None = None, hint: str = "") -> None:
        super().__init__(why)
        self.node = node
        self.hint = hint


class NotSetUp(NotReady):
    """A step of the image failed."""

    kind = FailureKind.STEP_FAILED
