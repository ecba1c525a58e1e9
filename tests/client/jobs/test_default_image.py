"""Default image for each version of torch."""

from __future__ import annotations

import pytest

from windlass.client.jobs.node_settings import find_torch_image


@pytest.mark.parametrize(
    ("version", "image"),
    [
        ("2.13.0", "pytorch/pytorch:2.13.0-cuda13.0-cudnn9-runtime"),
        ("2.13.0+cpu", "pytorch/pytorch:2.13.0-cuda13.0-cudnn9-runtime"),
        ("2.8.0", "pytorch/pytorch:2.8.0-cuda12.8-cudnn9-runtime"),
        ("2.5.1", "pytorch/pytorch:2.5.1-cuda12.4-cudnn9-runtime"),
        ("2.14.0.dev20261101", ""),
        ("2.0.1", ""),
    ],
)
def test_releases_have_an_image(version: str, image: str) -> None:
    assert find_torch_image(version) == image
