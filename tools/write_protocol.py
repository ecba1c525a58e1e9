"""Writes docs/protocol.md from the records in `windlass.wire.messages`: `make protocol`.

What is said about each message is its docstring; nothing of the page is written by hand but what stands here.
"""

from __future__ import annotations

from pathlib import Path

from windlass import names
from windlass.records import find_annotations
from windlass.wire.message import Direction, Message
from windlass.wire.messages import agents, calls, computes, forkserver, jobs, ranks

PATH = Path(__file__).parents[1] / "docs/protocol.md"
_DIRECTIONS = (
    *(jobs.CLIENT_TO_LEAD, jobs.LEAD_TO_CLIENT, jobs.LEAD_TO_NODE, jobs.NODE_TO_LEAD),
    *(calls.CLIENT_TO_COMPUTE_LEAD, calls.COMPUTE_LEAD_TO_CLIENT),
    *(computes.LEAD_TO_COMPUTE_NODE, computes.COMPUTE_NODE_TO_LEAD),
    *(computes.NODE_TO_RANK, computes.CALL_RANK_TO_NODE, ranks.RANK_TO_NODE),
    *(forkserver.NODE_TO_FORK_SERVER, forkserver.FORK_SERVER_TO_NODE, agents.CLIENT_TO_AGENT),
)
_HEAD = f"""# The protocol

Made by `make protocol` from the records in `src/windlass/wire/messages`; edit those. This is version
{names.PROTOCOL_VERSION}.

Between agents, and between clients and a lead, messages are frames: the lengths of header and body, 4
bytes each, then a header in JSON and a body of bytes (`wire/frames.py`). A header has at most
{names.MAX_HEADER_BYTES >> 10} KiB, a body {names.MAX_BODY_BYTES >> 20} MiB; both are refused by their
length, before anything is buffered. `type` says which kind of message it is. The first frame on a link
is a `hello`; a peer of another version or another job is told so and hung up on.

**Each kind is a record** (`wire/message.py`), read once, where it comes in. `records.py` checks the
type of every field, that counts are not negative, ports are ports and times are numbers, and ends the
link with a sentence that names the field. A kind that is not in the table of its direction is refused.
Keys that a record does not have are ignored. A field with a default, shown with `=`, need not be said.

**What it costs.** A record is no dataclass: 80 of those would take longer to make than the agent takes
to start. `records.py` makes its checks when the first one comes. Node 0 and the lead are one process
and hand records to each other as they are, so that of the messages of an empty call four are read: the
client's, one by each rank, each rank's answer, and the results by the client ([times](benchmarks.md)).
Datagrams and what is said to the fork server are JSON of the same form, under `type`, `kind` or `event`.
"""


def render() -> str:
    """The whole page."""
    told: set[type[Message]] = set()
    sections = [_render_direction(direction, told) for direction in _DIRECTIONS]
    return "\n".join([_HEAD, *sections, _render_parts(told)])


def _render_direction(direction: Direction, told: set[type[Message]]) -> str:
    new = [cls for cls in direction.kinds.values() if cls not in told]
    known = [f"`{cls.kind}`" for cls in direction.kinds.values() if cls in told]
    told.update(new)
    also = f"\nAnd, as above: {', '.join(known)}.\n" if known else ""
    title = f"## From {direction.sender} to {direction.receiver}"
    return "\n".join([title, "", direction.about, "", *_render_table(new), also])


def _render_table(kinds: list[type[Message]]) -> list[str]:
    if not kinds:
        return []
    rows = [
        f"| `{cls.kind}` | {cls.__name__} | {_summary(cls)} | {_fields(cls)} |" for cls in kinds
    ]
    return ["| kind | record | what it says | fields |", "|---|---|---|---|", *rows]


def _render_parts(told: set[type[Message]]) -> str:
    """Records inside messages."""
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
    parts = sorted(inside - told, key=lambda cls: cls.__name__)
    rows = [f"| {cls.__name__} | {_summary(cls)} | {_fields(cls)} |" for cls in parts]
    head = ["## Inside messages", "", "| record | what it is | fields |", "|---|---|---|"]
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
