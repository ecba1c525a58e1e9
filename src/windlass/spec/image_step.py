"""The steps of an image: what nodes do once, before ranks start, over what the image has. Records alone.

Who writes them is `client.compute.resources.image`, who runs them `agent.node.image_steps`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, cast

from windlass import records


@dataclass(frozen=True, slots=True, kw_only=True)
class PipStep:
    """Packages, as words for `pip install`."""

    kind: ClassVar[str] = "pip"
    packages: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunStep:
    """A command for `sh -c`, in the project's folder."""

    kind: ClassVar[str] = "run"
    command: str


ImageStep = PipStep | RunStep


def read_step(data: Any) -> ImageStep:
    """A step in its JSON form; one of a kind that is not known here is refused."""
    return cast(ImageStep, records.read(cast(type, ImageStep), data))
