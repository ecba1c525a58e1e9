"""Connection of a client to a lead: complete frames in order, and detection of dead peers."""

from __future__ import annotations

import pytest
from scripted_lead import LeadEnd, make_info, scripted

from windlass.client.compute.nodes.compute_connection import ask_info, expect
from windlass.errors import ProtocolError
from windlass.wire.blocking_link import ConnectionBroken
from windlass.wire.frames import render_frame
from windlass.wire.messages.calls import (
    AskInfo,
    CallAccepted,
    CallStarted,
    CallUnknown,
    ComputeInfo,
    EndCall,
)
from windlass.wire.messages.computes import MakeObject, PayloadPart
from windlass.wire.messages.jobs import Acknowledged
from windlass.wire.messages.link import Heartbeat, Hello, Refused, Welcome


def greet(connection: LeadEnd) -> None:
    hello = connection.hear(Hello)
    assert (hello.role, hello.job_id) == ("client", "warm-ab2cd")
    connection.say(Welcome())


def test_messages_arrive_in_order_without_heartbeats():
    def lead(connection):
        greet(connection)
        connection.say(Heartbeat())
        connection.say(CallAccepted(id="a"), b"body")
        connection.say(Heartbeat())
        connection.say(CallStarted(id="b"))
        connection.hear_end()

    with scripted(lead) as home:
        connection = home.dial()
        assert tuple(connection.receive(None)) == (CallAccepted(id="a"), b"body")
        assert tuple(connection.receive(None)) == (CallStarted(id="b"), b"")
        assert connection.receive(0.01) is None
        connection.close()


def test_frame_that_arrives_byte_by_byte_is_complete():
    def lead(connection):
        greet(connection)
        for byte in render_frame(CallAccepted(id="a"), b"body"):
            connection.socket.sendall(bytes([byte]))
        connection.hear_end()

    with scripted(lead) as home:
        connection = home.dial()
        assert tuple(connection.receive(None)) == (CallAccepted(id="a"), b"body")
        connection.close()


def test_large_body_arrives_complete():
    segments = [b"a" * (3 << 20), memoryview(b"b" * (1 << 20)), b"c"]

    def lead(connection):
        greet(connection)
        message, body = connection.hear_whole(MakeObject)
        assert message.sizes == [len(segment) for segment in segments]
        assert body == b"".join(segments)
        connection.say(Acknowledged())
        connection.hear_end()

    with scripted(lead) as home:
        connection = home.dial()
        connection.send(MakeObject(sizes=[len(segment) for segment in segments]), segments)
        assert connection.receive(None).message == Acknowledged()
        connection.close()


def test_parts_arrive_in_order():
    def lead(connection):
        greet(connection)
        parts = [connection.hear_whole(PayloadPart) for _ in range(2)]
        assert parts == [(PayloadPart(payload="k"), b"one"), (PayloadPart(payload="k"), b"two")]
        connection.hear_end()

    with scripted(lead) as home:
        connection = home.dial()
        connection.send_parts("k", [b"one", b"two"])
        connection.close()


# -- broken connections --------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["hangs up", "says something else"])
def test_without_a_welcome_there_is_no_connection(how):
    def lead(connection):
        connection.hear(Hello)
        if how == "says something else":
            connection.say(Acknowledged())
            connection.hear_end()

    with scripted(lead) as home, pytest.raises(ConnectionBroken):
        home.dial()


def test_refused_client_gets_the_reason():
    def lead(connection):
        connection.hear(Hello)
        connection.say(Refused(why="another version", hint="use the same one"))
        connection.hear_end()

    with scripted(lead) as home:
        with pytest.raises(ProtocolError, match="another version") as caught:
            home.dial()
        assert caught.value.hint == "use the same one"


def test_lead_that_hangs_up_breaks_the_connection():
    with scripted(greet) as home:
        connection = home.dial()
        with pytest.raises(ConnectionBroken):
            connection.receive(None)
        with pytest.raises(ConnectionBroken):
            connection.send(AskInfo())
        connection.close()


def test_unanswered_request_breaks_the_connection():
    def lead(connection):
        greet(connection)
        connection.hear(EndCall)
        connection.hear_end()

    with scripted(lead) as home:
        connection = home.dial()
        with pytest.raises(ConnectionBroken, match=r"no answer in 0\.02 s"):
            connection.ask(EndCall(id="a"), timeout_s=0.02)
        connection.close()


@pytest.mark.parametrize(
    ("header", "why"),
    [
        ({"type": "call", "id": "a"}, "the compute's lead may not send 'call' to the client"),
        ({"type": "accepted"}, "it has no id"),
        ({"type": "results", "id": "a", "ends": 1, "answers": []}, "its ends is 1, not a bool"),
        (
            {"type": "done", "id": "a", "state": "failed", "verdict": {"kind": "x"}},
            "cannot read Verdict",
        ),
    ],
)
def test_invalid_message_of_a_lead_is_refused(header, why):
    def lead(connection):
        greet(connection)
        connection.say(header)
        connection.hear_end()

    with scripted(lead) as home:
        connection = home.dial()
        with pytest.raises(ProtocolError, match=why):
            connection.receive(None)
        connection.close()


def test_an_answer_of_another_kind_is_refused():
    def lead(connection):
        greet(connection)
        connection.hear(AskInfo)
        connection.say(CallUnknown(id="a"))
        connection.hear_end()

    with scripted(lead) as home:
        connection = home.dial()
        with pytest.raises(ProtocolError, match="replied with 'unknown' instead of 'info'"):
            expect(ComputeInfo, connection.ask(AskInfo()))
        connection.close()


def test_connection_identifies_its_lead():
    def lead(connection):
        connection.welcome(born="lead-7", num_calls=3)
        connection.hear_end()

    with scripted(lead) as home:
        connection = home.dial()
        assert ask_info(connection).born == "lead-7"
        assert (connection.lead, connection.num_calls) == ("lead-7", 3)
        connection.close()


# -- idle connections ----------------------------------------------------------------------------


def test_recently_used_connection_is_not_checked():
    def lead(connection):
        connection.hear(Hello)
        connection.say_all(Welcome(), Heartbeat())
        connection.hear_end()  # no message arrived

    with scripted(lead) as home:
        connection = home.dial()
        assert connection.is_alive()
        connection.close()


def test_connection_with_a_closed_peer_is_not_alive():
    with scripted(greet) as home:
        connection = home.dial()
        with pytest.raises(ConnectionBroken):
            connection.receive(None)
        assert not connection.is_alive()
        connection.close()


@pytest.mark.parametrize(
    ("answer", "is_alive"),
    [(make_info(num_calls=12), True), (Acknowledged(), False), (Refused(why="no"), False)],
    ids=["info", "something else", "refused"],
)
def test_idle_connection_is_checked(answer, is_alive):
    def lead(connection):
        connection.hear(Hello)
        connection.say_all(Welcome(), CallStarted(id="old"), Heartbeat())
        connection.hear(AskInfo)
        connection.say(answer)
        connection.hear_end()

    with scripted(lead) as home:
        connection = home.dial()
        connection.used_s -= 3600
        assert connection.is_alive() is is_alive
        assert connection.num_calls == (12 if is_alive else 0)
        connection.close()
