"""How a script ends, what it prints on the way, and what its hooks see: python and windlass side by side.

`windlass run` itself exits with 0 or 1; how the rank ended is in its verdict, and that is what is compared.
"""

from __future__ import annotations

import re

import pytest
from parity.snippets import SNIPPETS


@pytest.fixture(params=SNIPPETS)
def sides(request, launch):
    name = f"snippet_{request.param}.py"
    return [launch(side, name) for side in ("python", "windlass")]


def test_the_status(sides):
    python, windlass = sides
    assert windlass.status == python.code
    assert windlass.code == (1 if python.code else 0)


@pytest.mark.parametrize("stream", ["out", "err"])
def test_what_it_prints(sides, stream):
    python, windlass = (settle(side.text(stream)) for side in sides)
    assert windlass == python


def settle(text: str) -> str:
    """Without what may differ: addresses, and three things that do so on purpose."""
    # faulthandler is on in ranks: a crash shows where it was
    text = text.partition("Fatal Python error")[0]
    # frames of the launcher are below the script's, so the deepest call is some frames less deep
    text = re.sub(r"repeated 9\d\d more times", "repeated 9.. more times", text)
    # a log is made of lines: the last one has an end
    text = text.removesuffix("\n")
    return re.sub(r"0x[0-9a-f]+", "0x", text)
