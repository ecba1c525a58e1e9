"""Exit status, output and exit hooks of scripts under python and under windlass.

`windlass run` itself exits with 0 or 1. The comparison uses its verdict, which records how the rank exited.
"""

from __future__ import annotations

import re

import pytest
from parity.snippets import SNIPPETS


@pytest.fixture(params=SNIPPETS)
def sides(request, launch):
    name = f"snippet_{request.param}.py"
    return [launch(side, name) for side in ("python", "windlass")]


def test_status(sides):
    python, windlass = sides
    assert windlass.status == python.code
    assert windlass.code == (1 if python.code else 0)


@pytest.mark.parametrize("stream", ["out", "err"])
def test_output(sides, stream):
    python, windlass = (normalize(side.text(stream)) for side in sides)
    assert windlass == python


def normalize(text: str) -> str:
    """Remove what may differ: addresses, and three intended differences."""
    # ranks enable faulthandler, which prints the stack of a crash
    text = text.partition("Fatal Python error")[0]
    # the launcher's frames are below the script's, so the deepest call has a few frames less
    text = re.sub(r"repeated 9\d\d more times", "repeated 9.. more times", text)
    # a log consists of lines, so the last one has a newline
    text = text.removesuffix("\n")
    return re.sub(r"0x[0-9a-f]+", "0x", text)
