"""What may be said to `pip install` in a step of an image. Pure.

Packages as pip writes them, paths of the project, addresses, and pip's options. Options that would install to
somewhere else are refused: steps have a place of their own on every node.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable

from windlass.errors import SpecError

_NAME = r"[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?"
_EXTRAS = r"(\s*\[[A-Za-z0-9._,\s-]*\])?"
_VERSION = r"(~=|===?|!=|<=?|>=?)\s*[A-Za-z0-9.*+!_-]+"
_VERSIONS = rf"\(?\s*{_VERSION}(\s*,\s*{_VERSION})*\s*,?\s*\)?"
_PACKAGE = re.compile(rf"{_NAME}{_EXTRAS}\s*({_VERSIONS}|@\s*\S+)?\s*(;.+)?\Z")
_ONE_EQUALS = re.compile(rf"({_NAME})=([0-9][^=]*)\Z")
_PASSWORD = re.compile(r"://[^/@\s:]*:[^/@\s]+@")
_ELSEWHERE = ("-t", "--target", "--prefix", "--user", "--root", "--python", "--src")
_HINT = 'pip_install(["numpy>=2", "./wheels/mine.whl", "-r", "requirements.txt"])'


def check_packages(given: str | Iterable[str]) -> tuple[str, ...]:
    """The words for pip; SpecError says which of them is none."""
    listed = [given] if isinstance(given, str) else _as_list(given)
    words: list[str] = []
    for item in listed:
        if not isinstance(item, str) or not item.strip() or "\0" in item:
            raise SpecError(f"{item!r:.80} is not a package", hint=_HINT)
        text = item.strip()
        words += shlex.split(text) if text.startswith("-") else [text]
    if not words:
        raise SpecError("pip_install needs at least one package", hint=_HINT)
    last = ""
    for word in words:
        _check_word(word, is_value=last.startswith("-") and "=" not in last)
        last = word
    return tuple(words)


def _as_list(given: object) -> list[object]:
    if isinstance(given, Iterable) and not isinstance(given, bytes | dict):
        return list(given)
    raise SpecError(f"packages are a list of texts, not {type(given).__name__}", hint=_HINT)


def _check_word(word: str, *, is_value: bool) -> None:
    if _PASSWORD.search(word):
        # not shown: it would end in a log
        raise SpecError(
            "an address with a password in it could be read in the plan and in the Dockerfile",
            hint="set PIP_INDEX_URL or PIP_EXTRA_INDEX_URL by a Secret of the Compute",
        )
    option = word.partition("=")[0]
    if option in _ELSEWHERE:
        raise SpecError(
            f"pip_install takes no {option}: steps have a place of their own on every node",
            hint="leave it out",
        )
    if is_value or word.startswith("-") or _is_path(word) or _PACKAGE.match(word):
        return
    raise SpecError(f"{word!r:.120} is not a package as pip writes it", hint=_guess(word))


def _is_path(word: str) -> bool:
    ends = (".whl", ".tar.gz", ".zip")
    return word.startswith((".", "/", "git+", "http://", "https://", "file:")) or (
        word.partition("[")[0].endswith(ends) or ("/" in word and " " not in word)
    )


def _guess(word: str) -> str:
    if match := _ONE_EQUALS.match(word):
        return f"did you mean {match[1]}=={match[3]}?"
    parts = word.replace(",", " ").split()
    if len(parts) > 1 and all(_PACKAGE.match(part) for part in parts):
        return f"give each on its own: {parts}"
    return _HINT
