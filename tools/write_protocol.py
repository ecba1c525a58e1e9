"""Writer of docs/protocol.md from the records in `windlass.wire.messages`. Run it with `make protocol`.

The text about each message is its docstring. All other text of the page is in this module.
"""

from __future__ import annotations

import textwrap
from pathlib import Path

from windlass import names
from windlass.records import find_annotations
from windlass.wire.message import Direction, Message
from windlass.wire.messages import agents, calls, computes, forkserver, jobs, ranks

PATH = Path(__file__).parents[1] / "docs/protocol.md"
_WIDTH = 100
_DIRECTIONS = (
    *(jobs.CLIENT_TO_LEAD, jobs.LEAD_TO_CLIENT, jobs.LEAD_TO_NODE, jobs.NODE_TO_LEAD),
    *(calls.CLIENT_TO_COMPUTE_LEAD, calls.COMPUTE_LEAD_TO_CLIENT),
    *(computes.LEAD_TO_COMPUTE_NODE, computes.COMPUTE_NODE_TO_LEAD),
    *(computes.NODE_TO_RANK, computes.CALL_RANK_TO_NODE, ranks.RANK_TO_NODE),
    *(forkserver.NODE_TO_FORK_SERVER, forkserver.FORK_SERVER_TO_NODE, agents.CLIENT_TO_AGENT),
)
_HEAD = f"""# The protocol

This page lists every message between Windlass's processes, as of protocol version
{names.PROTOCOL_VERSION}. It is generated from the records in `src/windlass/wire/messages` by
`make protocol`. Edit those records instead.

Agents exchange messages as frames, and so do clients and leads. A frame consists of the lengths of
header and body (4 bytes each), a header in JSON, and a body of bytes (`wire/frames.py`). A header
has at most {names.MAX_HEADER_BYTES >> 10} KiB, and a body at most {names.MAX_BODY_BYTES >> 20} MiB.
Longer ones are rejected by their length, before they are buffered. The key `type` names the kind of
message.

The first frame on a connection is a `hello`. A peer with another version or another job receives a
refusal, and its connection is closed.

**Each kind is a record** (`wire/message.py`), read once on arrival. `records.py` checks the type and
range of every field. An error closes the connection and names the field. A kind that is not in the
table of its direction is rejected. Unknown keys are ignored. Fields with a default, shown with `=`,
are optional.

**Cost.** A record is not a dataclass, because creating 80 dataclasses would take longer than the
agent's start. `records.py` creates the checks of a kind when its first message arrives. Node 0 and
the lead share a process and pass records in memory. An empty call therefore reads four messages:
the client's, one by each rank, each rank's answer, and the results by the client
([times](benchmarks.md)).

Datagrams and messages of the fork server are JSON in the same form. They use the key `type`, `kind`
or `event`.
"""


def render() -> str:
    """Return the whole page."""
    shown: set[type[Message]] = set()
    sections = [_render_direction(direction, shown) for direction in _DIRECTIONS]
    return "\n".join([_wrap(_HEAD), *sections, _render_parts(shown)])


def _wrap(text: str) -> str:
    """Return text with every paragraph wrapped, because values change the length of lines."""
    paragraphs = text.rstrip().split("\n\n")
    wrapped = (
        textwrap.fill(" ".join(one.split()), _WIDTH, break_on_hyphens=False) for one in paragraphs
    )
    return "\n\n".join(wrapped) + "\n"


def _render_direction(direction: Direction, shown: set[type[Message]]) -> str:
    new = [cls for cls in direction.kinds.values() if cls not in shown]
    known = [f"`{cls.kind}`" for cls in direction.kinds.values() if cls in shown]
    shown.update(new)
    also = f"\nAlso, as above: {', '.join(known)}.\n" if known else ""
    title = f"## From {direction.sender} to {direction.receiver}"
    return "\n".join([title, "", direction.about, "", *_render_table(new), also])


def _render_table(kinds: list[type[Message]]) -> list[str]:
    if not kinds:
        return []
    rows = [
        f"| `{cls.kind}` | {cls.__name__} | {_summary(cls)} | {_fields(cls)} |" for cls in kinds
    ]
    return ["| kind | record | meaning | fields |", "|---|---|---|---|", *rows]


def _render_parts(shown: set[type[Message]]) -> str:
    """Return the table of records inside messages."""
    modules = (calls, computes, forkserver)
    inside = {
        cls
        for module in modules
        for cls in vars(module).values()
        if isinstance(cls, type)
        and issubclass(cls, Message)
        and not cls.kind
        and find_annotations(cls)
    }
    parts = sorted(inside - shown, key=lambda cls: cls.__name__)
    rows = [f"| {cls.__name__} | {_summary(cls)} | {_fields(cls)} |" for cls in parts]
    head = ["## Inside messages", "", "| record | meaning | fields |", "|---|---|---|"]
    return "\n".join([*head, *rows, ""])


def _summary(cls: type[Message]) -> str:
    return " ".join((cls.__doc__ or "").split()).replace("|", "\\|")


def _fields(cls: type[Message]) -> str:
    texts = []
    for name, text in find_annotations(cls).items():
        default = f" = {getattr(cls, name)!r}" if hasattr(cls, name) else ""
        texts.append(f"`{name}: {text}{default}`".replace("|", "\\|"))
    return ", ".join(texts)


if __name__ == "__main__":
    PATH.write_text(render())
