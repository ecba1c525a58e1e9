"""The image of pods for which none was named: the public PyTorch image of this machine's torch."""

from __future__ import annotations

import functools
import importlib.metadata
import re

from windlass.client.terminal import say

_REPOSITORY = "pytorch/pytorch"
# Since which version of torch a build with which CUDA and cuDNN has been published, newest first.
_BUILDS = (
    ((2, 11), "cuda13.0-cudnn9"),
    ((2, 7), "cuda12.8-cudnn9"),
    ((2, 6), "cuda12.6-cudnn9"),
    ((2, 4), "cuda12.4-cudnn9"),
    ((2, 1), "cuda12.1-cudnn8"),
)
_RELEASE = re.compile(r"([0-9]+)\.([0-9]+)\.([0-9]+)(\+.*)?")


def choose_image() -> str:
    """Return the default image and say which it is, once. Empty if torch here is no public release."""
    try:
        version = importlib.metadata.version("torch")
    except importlib.metadata.PackageNotFoundError:
        return ""
    image = find_image(version)
    if image:
        _say_image(image, version)
    return image


def find_image(version: str) -> str:
    """Return the public image of a version of torch; empty for a version that has none."""
    release = _RELEASE.fullmatch(version)
    if release is None:
        return ""
    number = (int(release[1]), int(release[2]))
    builds = [build for since, build in _BUILDS if since <= number]
    return (
        f"{_REPOSITORY}:{release[1]}.{release[2]}.{release[3]}-{builds[0]}-runtime"
        if builds
        else ""
    )


@functools.cache
def _say_image(image: str, version: str) -> None:
    say(
        f"image {image}, as torch {version} is installed here; "
        "windlass config set image NAME:TAG sets another"
    )
