"""Docstrings: the first paragraph, and a line of help for each parameter.

Reads the three styles people write: Google (`Args:`), numpy (`Parameters` underlined) and Sphinx
(`:param name:`). Pure text in, text out. Called by cli.signature only; knows nothing of flags.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator, Mapping, Sequence

_GOOGLE_SECTION = re.compile(r"(?:Args|Arguments|Parameters|Keyword Args|Keyword Arguments):\s*")
_GOOGLE_ITEM = re.compile(r"\*{0,2}(\w+)\s*(?:\(.*?\))?\s*:\s*(.*)")
_NUMPY_SECTION = re.compile(r"(?:Other )?Parameters\s*")
_NUMPY_ITEM = re.compile(r"(\*{0,2}\w+(?:\s*,\s*\*{0,2}\w+)*)\s*(?::.*)?")
_SPHINX_ITEM = re.compile(
    r":(?:param|parameter|arg|argument|key|keyword)\s+(?:[^:]*\s)?\*{0,2}(\w+):(.*)"
)


def read_summary(docstring: str) -> str:
    """The first paragraph, as one line."""
    lines = inspect.cleandoc(docstring).splitlines()
    return " ".join(line.strip() for line in _paragraph(lines))


def read_parameter_help(docstring: str) -> Mapping[str, str]:
    """Each documented parameter's first paragraph, as one line."""
    lines = inspect.cleandoc(docstring).splitlines()
    help_of: dict[str, str] = {}
    for index, line in enumerate(lines):
        if _GOOGLE_SECTION.fullmatch(line):
            help_of.update(_read_google(_block(lines[index + 1 :])))
        elif _NUMPY_SECTION.fullmatch(line) and _is_underline(lines[index + 1 : index + 2]):
            help_of.update(_read_numpy(lines[index + 2 :]))
        elif match := _SPHINX_ITEM.fullmatch(line.strip()):
            help_of[match[1]] = _join(match[2], _block(lines[index + 1 :]))
    return help_of


def _read_google(block: Sequence[str]) -> Iterator[tuple[str, str]]:
    indent = _indent(block[0]) if block else 0
    for index, line in enumerate(block):
        match = _GOOGLE_ITEM.fullmatch(line.strip())
        if match and _indent(line) == indent:
            yield match[1], _join(match[2], _block(block[index + 1 :], indent))


def _read_numpy(lines: Sequence[str]) -> Iterator[tuple[str, str]]:
    for index, line in enumerate(lines):
        if _is_underline(lines[index + 1 : index + 2]):
            return
        match = _NUMPY_ITEM.fullmatch(line)
        if match:
            text = _join("", _block(lines[index + 1 :]))
            for name in match[1].split(","):
                yield name.strip().lstrip("*"), text


def _block(lines: Sequence[str], indent: int = 0) -> Sequence[str]:
    """The leading lines that are deeper than `indent`, blank ones included."""
    for index, line in enumerate(lines):
        if line.strip() and _indent(line) <= indent:
            return lines[:index]
    return lines


def _join(first: str, rest: Sequence[str]) -> str:
    return " ".join(line.strip() for line in _paragraph([first, *rest])).strip()


def _paragraph(lines: Sequence[str]) -> Sequence[str]:
    for index, line in enumerate(lines):
        if not line.strip() and index > 0:
            return lines[:index]
    return lines


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip())


def _is_underline(lines: Sequence[str]) -> bool:
    return bool(lines) and len(lines[0].strip()) >= 3 and set(lines[0].strip()) <= {"-", "="}
