"""Files of NAME=value lines, as shells and many tools write them. Pure; no error shows a value."""

from __future__ import annotations

import re

from windlass.errors import SpecError

_LINE = re.compile(r"(?:export\s+)?([A-Za-z_][A-Za-z0-9_]*)\s*=\s*(.*)\Z")
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r"}


def read_dotenv(text: str, where: str) -> dict[str, str]:
    """The variables of a file; `where` is its name, for messages."""
    variables: dict[str, str] = {}
    for number, raw in enumerate(text.splitlines(), 1):
        line = raw.strip()
        if not line or line.startswith("#"):
            continue
        match = _LINE.match(line)
        if match is None:
            raise SpecError(
                f"{where}, line {number}: this is not NAME=value",
                hint='with env="NAME" the whole file becomes one variable',
            )
        variables[match[1]] = _read_value(match[2], f"{where}, line {number}")
    if not variables:
        raise SpecError(f"{where} has no variable in it", hint="write lines of NAME=value")
    return variables


def _read_value(text: str, where: str) -> str:
    quote = text[:1]
    if quote not in ("'", '"'):
        return re.split(r"\s+#", text, maxsplit=1)[0].rstrip()
    end = _find_end(text, quote)
    rest = text[end + 1 :].strip()
    if end < 0 or (rest and not rest.startswith("#")):
        raise SpecError(f"{where}: the quotes do not match", hint="put the value in one pair")
    inner = text[1:end]
    if quote == "'":
        return inner
    return re.sub(r"\\(.)", lambda escape: _ESCAPES.get(escape[1], escape[1]), inner)


def _find_end(text: str, quote: str) -> int:
    at = 1
    while at < len(text):
        if text[at] == "\\" and quote == '"':
            at += 1
        elif text[at] == quote:
            return at
        at += 1
    return -1
