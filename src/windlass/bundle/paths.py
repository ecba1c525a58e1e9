"""What a name or a link target in a bundle may look like: the one rule for packing and unpacking.

Pure text, no file system, standard library only: the same rule runs in the node. A fault is a
clause that fits behind "the name ..."; None means there is none.
"""

from __future__ import annotations

import re

_DRIVE = re.compile(r"[A-Za-z]:")


def path_fault(path: str) -> str | None:
    """Why `path` cannot be the name of a file in a bundle."""
    fault = _text_fault(path)
    if fault:
        return fault
    parts = path.split("/")
    if ".." in parts:
        return "climbs with `..`"
    if "" in parts or "." in parts:
        return "has an empty or `.` part"
    return None


def link_fault(path: str, target: str) -> str | None:
    """Why a link at `path` may not point at `target`.

    `..` may only lead. The folders above `path` are real ones, so leading `..` can be counted;
    behind another link it could not, and would climb out of the root while the text stays inside.
    """
    fault = _text_fault(target)
    if fault:
        return fault
    parts = [part for part in target.split("/") if part not in ("", ".")]
    climbs = next((i for i, part in enumerate(parts) if part != ".."), len(parts))
    if climbs > path.count("/"):
        return "leaves the root"
    if ".." in parts[climbs:]:
        return "climbs with `..` behind a name"
    return None


def parents_of(path: str) -> tuple[str, ...]:
    """The folders above `path`, nearest first, without the root."""
    parts = path.split("/")
    return tuple("/".join(parts[:count]) for count in range(len(parts) - 1, 0, -1))


def shown(path: str) -> str:
    """`path` for a message: what a terminal might obey, or could not encode, is escaped."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in path)


def _text_fault(text: str) -> str | None:
    if not text:
        return "is empty"
    if "\0" in text:
        return "holds a NUL"
    if text.startswith("/"):
        return "is absolute"
    if "\\" in text:
        return "holds a backslash, a folder on other systems"
    if _DRIVE.match(text):
        return "starts with a drive letter"
    try:
        text.encode()
    except UnicodeEncodeError:
        return "is not UTF-8"
    return None
