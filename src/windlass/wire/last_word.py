"""Last word of a job: its status, results and logs, encoded as lines of node 0's log.

Clients read it after all agents have exited. Pods cannot call the API server, and a pod's files disappear
when it ends, but its log stays as long as the pod is kept. Files that do not fit are left out and listed
by name. This module performs no I/O.
"""

from __future__ import annotations

import base64
import io
import json
import re
import struct
import zipfile
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field

from windlass import records
from windlass.errors import ProtocolError

MAX_BYTES = 2 << 20  # a node keeps about ten megabytes of a pod's log
_LINE_BYTES = 12 << 10  # container runtimes cut lines at 16 KiB
_LINE = re.compile(
    rb"windlass-last-word ([0-9]{1,5})/([0-9]{1,5}) ([A-Za-z0-9+/=]{0,%d})\s*$" % _LINE_BYTES
)
# Any process in a pod can write such lines, so larger input than an agent writes is rejected. The status has
# no separate limit, but the status of ten thousand ranks fits.
_MAX_PARTS = 2048
_MAX_UNPACKED_BYTES = 32 << 20
_MAX_FILES = 20_000
_OMITTED = "omitted.json"
_UNREADABLE = (
    *(ValueError, KeyError, EOFError, OSError, struct.error, zipfile.BadZipFile, zlib.error),
    *(RuntimeError, NotImplementedError, ProtocolError),  # encrypted, or compressed in another way
)


@dataclass(frozen=True, slots=True, kw_only=True)
class LastWord:
    """Included files, by path in the job's folder, and the sizes of omitted ones."""

    files: Mapping[str, bytes]
    omitted: Mapping[str, int] = field(default_factory=dict)


def choose_files(sizes: Mapping[str, int], *, max_bytes: int = MAX_BYTES) -> set[str]:
    """Return the paths of the files that fit. Uses only their sizes, so that no file is read needlessly.

    Small files come first. Logs come last, because clients can also read them from the pods.
    """
    kept, left = set(), max_bytes
    for path in sorted(sizes, key=lambda path: (path.endswith(".log"), sizes[path])):
        if sizes[path] <= left:
            kept.add(path)
            left -= sizes[path]
    return kept


def render_last_word(
    files: Mapping[str, bytes],
    *,
    omitted: Mapping[str, int] | None = None,
    max_bytes: int = MAX_BYTES,
) -> bytes:
    """Return the lines for the log. The first file is always included, the others while they fit.

    `omitted` holds the sizes of files that were not read at all.
    """
    first, *others = files
    sizes = {path: len(files[path]) for path in others}
    kept = choose_files(sizes, max_bytes=max_bytes)
    left_out = {path: size for path, size in sizes.items() if path not in kept}
    chosen = {path: data for path, data in files.items() if path == first or path in kept}
    text = base64.b64encode(_pack(chosen, {**(omitted or {}), **left_out}))
    parts = [text[at : at + _LINE_BYTES] for at in range(0, len(text), _LINE_BYTES)]
    return b"".join(
        b"windlass-last-word %d/%d %s\n" % (number, len(parts), part)
        for number, part in enumerate(parts, 1)
    )


def read_last_word(log: bytes) -> LastWord | None:
    """Return the last word in a log, or None if it is absent or incomplete."""
    parts: dict[int, bytes] = {}
    total = 0
    for line in log.splitlines():
        if line_match := _LINE.match(line):
            number, total = int(line_match[1]), int(line_match[2])
            parts[number] = line_match[3]
    if not 0 < total <= _MAX_PARTS or set(parts) != set(range(1, total + 1)):
        return None
    try:
        return _unpack(base64.b64decode(b"".join(parts[number] for number in sorted(parts))))
    except _UNREADABLE:  # a line was truncated, or Windlass did not write it
        return None


def num_lines(log: bytes) -> int:
    """Return the number of lines of the last word at the end of a log, or 0 if there is none."""
    for line in reversed(log.splitlines()):
        if line_match := _LINE.match(line):
            return min(int(line_match[2]), _MAX_PARTS)
    return 0


def _pack(files: Mapping[str, bytes], omitted: Mapping[str, int]) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for path, data in {**files, _OMITTED: json.dumps(omitted).encode()}.items():
            archive.writestr(zipfile.ZipInfo(path), data, zipfile.ZIP_DEFLATED)
    return buffer.getvalue()


def _unpack(data: bytes) -> LastWord:
    files, left = {}, _MAX_UNPACKED_BYTES
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        for name in archive.namelist()[: _MAX_FILES + 1]:
            with archive.open(name) as file:
                files[name] = file.read(left + 1)  # the size stated in the archive may be forged
            left -= len(files[name])
            if left < 0 or len(files) > _MAX_FILES:
                raise ValueError("the last word is larger than an agent writes")
    return LastWord(omitted=read_omitted(files.pop(_OMITTED)), files=files)


def read_omitted(text: bytes) -> dict[str, int]:
    """Return the sizes of the omitted files, by path."""
    sizes = records.parse(text, "the list of omitted files")
    if not isinstance(sizes, dict) or not all(type(size) is int for size in sizes.values()):
        raise ProtocolError("the list of omitted files is malformed")
    return sizes
