"""The name that was probably meant, for the hints of errors: "did you mean nodes?".

Pure. Every error about a name that does not exist takes its hint from here, so all of them read alike.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

ALIKE = 0.6  # how much alike two names must be to be taken for each other, from 0 to 1


def nearest(name: str, known: Iterable[str], *, alike: float = ALIKE) -> str:
    """The known name that is most like `name`; empty if none is."""
    from difflib import get_close_matches  # errors only

    return next(iter(get_close_matches(name, known, n=1, cutoff=alike)), "")


def did_you_mean(
    name: str,
    known: Iterable[str],
    otherwise: str = "",
    *,
    show: Callable[[str], object] = str,
    alike: float = ALIKE,
) -> str:
    """A hint with the known name that is most like `name`, written as `show` writes it.

    `otherwise` is the hint where no name is alike; empty: one that lists all known names.
    """
    known = tuple(known)
    near = nearest(name, known, alike=alike)
    return f"did you mean {show(near)}?" if near else otherwise or f"there are {', '.join(known)}"
