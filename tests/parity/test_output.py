"""Output of ranks reaches the log unchanged, and the terminal as far as it is text."""

from __future__ import annotations

import pytest


@pytest.fixture(scope="module", params=["large", "odd", "bars", "children"])
def sides(request, launch):
    return [launch(side, "output.py", request.param) for side in ("python", "windlass")]


@pytest.mark.parametrize("stream", ["out", "err"])
def test_every_byte_is_in_the_log(sides, stream):
    """Overwritten states of a progress bar may be missing. Each stream ends with a newline."""
    python, windlass = (normalize(getattr(side, stream)[0]) for side in sides)
    assert windlass == python


def normalize(data: bytes) -> bytes:
    """Render the output like a terminal: drop overwritten text and the last newline."""
    lines = [line.rpartition(b"\r")[2] for line in data.removesuffix(b"\n").split(b"\n")]
    return b"\n".join(lines)


def test_status(sides):
    assert [side.status for side in sides] == [0, 0]


def test_stdout_goes_to_stdout_and_stderr_to_stderr(launch):
    ran = launch("windlass", "output.py", "children")
    out, err = (ran.folder / "out").read_text(), (ran.folder / "err").read_text()
    assert out == "[0/0] before\n[0/0] child\n[0/0] after\n"
    assert "[0/0] child to stderr\n" in err
