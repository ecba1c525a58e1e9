"""Suggestions for misspelled names in the hints of errors: "did you mean nodes?".

Every error about an unknown name gets its hint from this module, so that all hints read alike. Performs no
I/O.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

ALIKE = 0.6  # minimum similarity of a suggestion, from 0 to 1


def nearest(name: str, known: Iterable[str], *, alike: float = ALIKE) -> str:
    """Return the known name that is most similar to `name`, or an empty string if none is similar."""
    from difflib import get_close_matches  # imported here, because only errors need it

    return next(iter(get_close_matches(name, known, n=1, cutoff=alike)), "")


def did_you_mean(
    name: str,
    known: Iterable[str],
    otherwise: str = "",
    *,
    show: Callable[[str], object] = str,
    alike: float = ALIKE,
) -> str:
    """Return a hint with the known name that is most similar to `name`, formatted by `show`.

    If no name is similar, return `otherwise` (default: a list of all known names).
    """
    known = tuple(known)
    near = nearest(name, known, alike=alike)
    return f"did you mean {show(near)}?" if near else otherwise or f"available: {', '.join(known)}"
