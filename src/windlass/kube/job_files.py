"""Files of a job on a cluster: small ones in the job's own Secret, the others cut over more Secrets. Pure.

One Secret holds 1 MiB, and `kubectl apply` without `--server-side` copies an object into an annotation that
holds 256 KiB. A pod joins the pieces before its agent starts: `JOIN` is the program that does it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from windlass import names

MAX_SECRET_BYTES = 1_000_000  # of the 1 MiB that a Secret may hold
MAX_APPLIED_BYTES = 180_000  # 240,000 in base64, of the 262,144 that annotations may hold

# Runs on any Python 3: an old interpreter must reach the agent, which refuses it by name.
JOIN = f"""\
import os, sys
source, target = sys.argv[1:]
os.makedirs(target, exist_ok=True)
pieces = [name.rpartition(".") for name in os.listdir(source) if name[0] != "."]
for name in set(piece[0] for piece in pieces):
    path = os.path.join(target, name)
    with open(path + ".new", "wb") as whole:
        for number in sorted(int(piece[2]) for piece in pieces if piece[0] == name):
            with open(os.path.join(source, "%s.%d" % (name, number)), "rb") as piece:
                whole.write(piece.read())
    os.replace(path + ".new", path)
agent = os.path.join(target, {names.AGENT_FILE!r})
os.execv(sys.executable, [sys.executable, "-I", "-S", agent, "pod"])
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class FileNames:
    """What a pod's template must know of the files."""

    keys: tuple[str, ...]  # of the job's own Secret
    num_parts: int  # Secrets that hold the pieces of the other files


@dataclass(frozen=True, slots=True, kw_only=True)
class JobFiles:
    """Contents of a job's Secrets: its own, and those that hold pieces of larger files."""

    own: Mapping[str, bytes]
    parts: tuple[Mapping[str, bytes], ...]

    @property
    def names(self) -> FileNames:
        """The names of the files, without their contents."""
        return FileNames(keys=tuple(self.own), num_parts=len(self.parts))

    def add_own(self, files: Mapping[str, bytes]) -> JobFiles:
        """Return the same with more files in the job's own Secret."""
        return replace(self, own={**self.own, **files})

    def holds(self, name: str) -> bool:
        """Return whether a large file of that name is among the pieces."""
        return any(first_piece(name) in part for part in self.parts)


def first_piece(name: str) -> str:
    """Return the key of a large file's first piece."""
    return f"{name}.0"


def cut_files(files: Mapping[str, bytes], most_bytes: int) -> tuple[Mapping[str, bytes], ...]:
    """Cut files into pieces, and fill as few Secrets of `most_bytes` with them as possible."""
    parts: list[dict[str, bytes]] = [{}]
    room = most_bytes
    for name, content in files.items():
        number, start = 0, 0
        while start < len(content) or number == 0:
            if not room:
                parts.append({})
                room = most_bytes
            piece = content[start : start + room]
            parts[-1][f"{name}.{number}"] = piece
            number, start, room = number + 1, start + len(piece), room - len(piece)
    return tuple(parts)
