"""IDs of jobs: short, readable, unlikely to repeat, and valid as the name of any Kubernetes object.

An ID is a DNS label (RFC 1035): lowercase letters, digits and -, starting with a letter. It has at most 45
characters, which leaves room for suffixes of engines. Pods of a TrainJob are named ID-node-0-INDEX-xxxxx.
"""

from __future__ import annotations

import os
import re
import unicodedata
from pathlib import Path

from windlass.spec.work import Calls, Function, Module, Script, Work

MAX_ID = 45
_ALPHABET = "abcdefghijkmnpqrstuvwxyz23456789"
_LETTERS = bytes(ord(_ALPHABET[byte % len(_ALPHABET)]) for byte in range(256))
_TAIL = 5
_CALL = 10  # a compute remembers up to 100,000 calls, and IDs must not repeat
_MAX_FROM_WORK = 24


def make_job_id(work: Work, name: str = "") -> str:
    """Return a new ID, made of the job's name, or else its work, and a few random letters."""
    clean = _clean(name, MAX_ID - _TAIL - 1) or _clean(_name_of(work), _MAX_FROM_WORK) or "job"
    return f"{clean}-{make_letters(_TAIL)}"


def make_letters(num: int) -> str:
    """Return random letters and digits that do not look alike."""
    return os.urandom(num).translate(_LETTERS).decode()


def make_call_id(compute: str) -> str:
    """Return a new ID of a call, COMPUTE.CALL, where CALL is random."""
    return f"{compute}.{make_letters(_CALL)}"


def split_call(text: str) -> tuple[str, str]:
    """Split the ID of a call into compute and call. Return empty strings for other texts with dots."""
    compute, _, call = text.rpartition(".")
    is_call = bool(compute) and len(call) == _CALL and set(call) <= set(_ALPHABET)
    return (compute, call) if is_call else ("", "")


def is_made_from(job_id: str, name: str) -> bool:
    """Return whether a job named `name` could have this ID."""
    clean = _clean(name, MAX_ID - _TAIL - 1)
    return bool(clean) and job_id[: -_TAIL - 1] == clean and job_id[-_TAIL - 1] == "-"


def _name_of(work: Work) -> str:
    if isinstance(work, (Function, Module)):
        return work.name.rpartition(".")[2]
    if isinstance(work, Calls):
        return "compute"
    return Path(work.path if isinstance(work, Script) else " ".join(work.argv[:1])).stem


def _clean(text: str, most: int) -> str:
    plain = unicodedata.normalize("NFKD", text).encode("ascii", "ignore").decode()
    clean = re.sub(r"[^a-z0-9]+", "-", plain.lower()).strip("-")
    if clean[:1].isdigit():
        clean = f"job-{clean}"
    return clean[:most].strip("-")
