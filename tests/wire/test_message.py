"""Messages. They round-trip, and malformed ones are refused with a sentence that names the field."""

from __future__ import annotations

import json

import pytest

from windlass.errors import ProtocolError
from windlass.records import find_annotations
from windlass.wire.frames import FrameDecoder, render_frame
from windlass.wire.lead_handover import AgentIdentity, LeadHandover
from windlass.wire.messages.calls import (
    CLIENT_TO_COMPUTE_LEAD,
    AskCall,
    CallResults,
    ConfigureCompute,
    WorldRequest,
)
from windlass.wire.messages.computes import CallAnswer, ForkWorld, RunCall
from windlass.wire.messages.forkserver import CallRankSetup
from windlass.wire.messages.jobs import (
    LEAD_TO_NODE,
    NODE_TO_LEAD,
    JoinLead,
    KeepHandover,
    StartAttempt,
)
from windlass.wire.messages.link import Hello
from windlass.wire.messages.ranks import RANK_TO_NODE
from windlass.wire.messages.worlds import EndWorld, RankEnded
from windlass.wire.results import ErrorInfo, Outcome

START = {"attempt": 1, "nodes": [0, 1], "address": "10.0.0.1", "port": 29500, "has_store": True}
REPORT = {"type": "report", "rank": 0, "attempt": 0, "at_s": 1.0}


def round_trip(message):
    """Return a message as it arrives at the other end of a connection."""
    [frame] = FrameDecoder().feed(render_frame(message))
    return type(message).read(frame.header)


@pytest.mark.parametrize(
    "message",
    [
        StartAttempt(**START),
        EndWorld(world=1, now=False, signal=15, within_s=None),
        JoinLead(
            pid=7,
            python="3.12.1",
            memory=LeadHandover(attempt=3, seats=(AgentIdentity(index=1, incarnation="a"),)),
        ),
        KeepHandover(memory=LeadHandover(deadline_at_s=5.0)),
        RankEnded(
            given="c.1",
            answered="",
            outcome=Outcome(
                rank=0, attempt=3, state="raised", at_s=2.0, error=ErrorInfo(type="E", message="m")
            ),
        ),
        ForkWorld(
            world=0,
            nodes=[],
            preload=["torch"],
            env={"A": "é"},
            about=CallRankSetup(
                framework="spmd", keep=True, start="", cwd="/", root="/", paths=["/a"]
            ),
        ),
    ],
    ids=lambda message: message.kind,
)
def test_messages_round_trip(message):
    assert round_trip(message) == message


def test_omitted_field_is_not_sent_and_has_its_default():
    order = EndWorld(world=1, now=True, signal=9)
    assert order.to_header() == {"type": "stop", "world": 1, "now": True, "signal": 9}
    assert order.within_s is None
    assert order == EndWorld(world=1, now=True, signal=9, within_s=None)
    assert not order.has_field("within_s")
    assert ConfigureCompute.read({"ttl_s": None}).has_field("ttl_s")


def test_a_message_cannot_be_changed():
    order = EndWorld(world=1, now=True, signal=9)
    with pytest.raises(AttributeError):
        order.now = False
    assert order.replaced(now=False) != order
    assert order.now is True


def test_messages_of_two_kinds_are_never_equal():
    assert EndWorld(world=1, now=True, signal=9) != RunCall(now=True, signal=9)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"attempt": "one"}, r"start.*attempt is 'one', not a count"),
        ({"attempt": -1}, "attempt is -1"),
        ({"attempt": True}, "attempt is True"),
        ({"attempt": 1 << 70}, "attempt is 1180591620717411303424"),
        ({"nodes": {"0": 1}}, "nodes is .* not a list"),
        ({"nodes": [0, None]}, "nodes is None, not a count"),
        ({"address": 3}, "address is 3, not a str"),
        ({"port": 65_536}, "port is 65536, not a port"),
        ({"has_store": 1}, "has_store is 1, not a bool"),
    ],
)
def test_a_malformed_field_is_named(change, says):
    with pytest.raises(ProtocolError, match=says):
        LEAD_TO_NODE.read({"type": "start", **START, **change})


@pytest.mark.parametrize("name", START)
def test_a_missing_field_is_named(name):
    header = {key: value for key, value in START.items() if key != name}
    with pytest.raises(ProtocolError, match=f"start.*it has no {name}"):
        LEAD_TO_NODE.read({"type": "start", **header})


def test_unknown_fields_are_ignored():
    assert LEAD_TO_NODE.read({"type": "start", **START, "new": [1]}) == StartAttempt(**START)


@pytest.mark.parametrize(
    "header",
    [{}, {"type": "start"}, {"type": 3}, {"type": ["join"]}, {"type": "nonsense"}, [], None],
)
def test_message_that_a_node_may_not_send_is_refused(header):
    with pytest.raises(ProtocolError, match=r"the node may not send .* to the lead"):
        NODE_TO_LEAD.read(header)


@pytest.mark.parametrize("value", ["nan", float("nan"), float("inf"), None, [1.0]])
def test_a_time_is_a_number(value):
    with pytest.raises(ProtocolError, match="at_s"):
        RANK_TO_NODE.read({**REPORT, "at_s": value})


@pytest.mark.parametrize("metrics", [{"loss": [1]}, {"loss": {}}, 3, [["loss", 1]]])
def test_a_metric_is_plain(metrics):
    with pytest.raises(ProtocolError, match="metrics"):
        RANK_TO_NODE.read({**REPORT, "metrics": metrics})


@pytest.mark.parametrize(
    "memory", [3, {"attempt": "x"}, {"history": [{}]}, {"seats": [{"index": 1}]}]
)
def test_records_inside_messages_are_checked(memory):
    with pytest.raises(ProtocolError):
        NODE_TO_LEAD.read({"type": "join", "pid": 1, "python": "3.12", "memory": memory})


def test_messages_inside_messages_are_checked():
    header = {"nodes": 1, "min_nodes": 1, "procs": 2, "ranks": [0, -1]}
    with pytest.raises(ProtocolError, match="ranks is -1"):
        WorldRequest.read(header)
    with pytest.raises(ProtocolError, match="profile"):
        CLIENT_TO_COMPUTE_LEAD.read({"type": "profile", "key": "k", "profile": 3})


def test_the_bytes_are_json_with_a_type():
    hello = Hello(version=1, role="client", job_id="a-1", node=None)
    text = render_frame(hello)[8:]
    assert json.loads(text) == {
        "type": "hello",
        "version": 1,
        "role": "client",
        "job_id": "a-1",
        "node": None,
    }


# -- the kinds of an empty call ------------------------------------------------------------------

EMPTY_CALL = {
    RunCall: {
        "id": "c.1",
        "world": 3,
        "name": "f",
        "method": "",
        "sizes": [33],
        "collect": "all",
        "stream": False,
        "reload": False,
        "is_watched": False,
        "sources": {},
        "meeting": {},
        "part": 7,
    },
    CallAnswer: {"call": "c.1", "rank": 1, "state": "returned", "sizes": [5], "at_s": 1.5},
    CallResults: {"id": "c.1", "ends": True, "answers": [{"rank": 0, "state": "raised"}]},
    AskCall: {"id": "c.1", "profile": "p", "sizes": [1]},
}
ODD = [None, True, -1, 1 << 80, 1.5, float("nan"), "x", "returned", [], [1, 2], [-1], {}, {"a": 1}]
FITTING = {  # the values of ODD that each type of field accepts
    "str": ["x", "returned"],
    "bool": [True],
    "Count": [],
    "float": [-1, 1.5, 1 << 80],
    "RankState": ["returned"],
    "Sequence[Count]": [[], [1, 2]],
    "Sequence[CallAnswer]": [[]],
    "Mapping[str, str]": [{}],
    "ErrorInfo | None": [None],
}


@pytest.mark.parametrize("kind", EMPTY_CALL)
def test_the_messages_of_an_empty_call_are_read_and_refused(kind):
    whole = EMPTY_CALL[kind]
    assert list(vars(kind.read(whole))) == list(whole)
    types = find_annotations(kind)
    for name in types.keys() & {*whole, "file", "is_ours", "error"}:
        for odd in ODD:
            header = {**whole, name: odd}
            if any(type(odd) is type(fit) and odd == fit for fit in FITTING[types[name]]):
                assert getattr(kind.read(header), name) == odd
            else:
                with pytest.raises(ProtocolError, match=f"its {name} is|ErrorInfo"):
                    kind.read(header)


def test_a_message_in_a_list_is_checked():
    with pytest.raises(ProtocolError, match=r"answer.*its rank is -1, not a count"):
        CallResults.read({"id": "c.1", "ends": True, "answers": [{"rank": -1}]})
