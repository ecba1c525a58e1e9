"""A client's connection to a lead: frames whole and in order, and whether anybody is still there."""

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
from windlass.wire.messages.jobs import Heard
from windlass.wire.messages.link import Heartbeat, Hello, Refused, Welcome


def greet(line: LeadEnd) -> None:
    hello = line.hear(Hello)
    assert (hello.role, hello.job_id) == ("client", "warm-ab2cd")
    line.say(Welcome())


def test_what_the_lead_says_comes_in_order_without_its_heartbeats():
    def lead(line):
        greet(line)
        line.say(Heartbeat())
        line.say(CallAccepted(id="a"), b"body")
        line.say(Heartbeat())
        line.say(CallStarted(id="b"))
        line.hear_end()

    with scripted(lead) as home:
        connection = home.dial()
        assert tuple(connection.receive(None)) == (CallAccepted(id="a"), b"body")
        assert tuple(connection.receive(None)) == (CallStarted(id="b"), b"")
        assert connection.receive(0.01) is None
        connection.close()


def test_a_frame_that_comes_byte_by_byte_is_whole():
    def lead(line):
        greet(line)
        for byte in render_frame(CallAccepted(id="a"), b"body"):
            line.socket.sendall(bytes([byte]))
        line.hear_end()

    with scripted(lead) as home:
        connection = home.dial()
        assert tuple(connection.receive(None)) == (CallAccepted(id="a"), b"body")
        connection.close()


def test_a_large_body_arrives_whole():
    segments = [b"a" * (3 << 20), memoryview(b"b" * (1 << 20)), b"c"]

    def lead(line):
        greet(line)
        message, body = line.hear_whole(MakeObject)
        assert message.sizes == [len(segment) for segment in segments]
        assert body == b"".join(segments)
        line.say(Heard())
        line.hear_end()

    with scripted(lead) as home:
        connection = home.dial()
        connection.send(MakeObject(sizes=[len(segment) for segment in segments]), segments)
        assert connection.receive(None).message == Heard()
        connection.close()


def test_parts_come_in_order():
    def lead(line):
        greet(line)
        parts = [line.hear_whole(PayloadPart) for _ in range(2)]
        assert parts == [(PayloadPart(payload="k"), b"one"), (PayloadPart(payload="k"), b"two")]
        line.hear_end()

    with scripted(lead) as home:
        connection = home.dial()
        connection.send_parts("k", [b"one", b"two"])
        connection.close()


# -- who is there --------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["hangs up", "says something else"])
def test_without_a_welcome_there_is_no_connection(how):
    def lead(line):
        line.hear(Hello)
        if how == "says something else":
            line.say(Heard())
            line.hear_end()

    with scripted(lead) as home, pytest.raises(ConnectionBroken):
        home.dial()


def test_a_client_that_is_refused_is_told_why():
    def lead(line):
        line.hear(Hello)
        line.say(Refused(why="another version", hint="use the same one"))
        line.hear_end()

    with scripted(lead) as home:
        with pytest.raises(ProtocolError, match="another version") as caught:
            home.dial()
        assert caught.value.hint == "use the same one"


def test_a_lead_that_hangs_up_breaks_the_line():
    with scripted(greet) as home:
        connection = home.dial()
        with pytest.raises(ConnectionBroken):
            connection.receive(None)
        with pytest.raises(ConnectionBroken):
            connection.send(AskInfo())
        connection.close()


def test_a_question_that_is_not_answered_in_time_breaks_the_line():
    def lead(line):
        greet(line)
        line.hear(EndCall)
        line.hear_end()

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
def test_what_no_lead_says_is_refused(header, why):
    def lead(line):
        greet(line)
        line.say(header)
        line.hear_end()

    with scripted(lead) as home:
        connection = home.dial()
        with pytest.raises(ProtocolError, match=why):
            connection.receive(None)
        connection.close()


def test_an_answer_of_another_kind_is_refused():
    def lead(line):
        greet(line)
        line.hear(AskInfo)
        line.say(CallUnknown(id="a"))
        line.hear_end()

    with scripted(lead) as home:
        connection = home.dial()
        with pytest.raises(ProtocolError, match="answered 'unknown', expected 'info'"):
            expect(ComputeInfo, connection.ask(AskInfo()))
        connection.close()


def test_a_line_knows_which_lead_is_at_its_end():
    def lead(line):
        line.welcome(born="lead-7", num_calls=3)
        line.hear_end()

    with scripted(lead) as home:
        connection = home.dial()
        assert ask_info(connection).born == "lead-7"
        assert (connection.lead, connection.num_calls) == ("lead-7", 3)
        connection.close()


# -- lines that were not used for a while --------------------------------------------------------


def test_a_line_that_was_used_just_now_is_not_asked():
    def lead(line):
        line.hear(Hello)
        line.say_all(Welcome(), Heartbeat())
        line.hear_end()  # nothing came

    with scripted(lead) as home:
        connection = home.dial()
        assert connection.is_alive()
        connection.close()


def test_a_line_at_whose_end_nobody_is_any_more_is_not_alive():
    with scripted(greet) as home:
        connection = home.dial()
        with pytest.raises(ConnectionBroken):
            connection.receive(None)
        assert not connection.is_alive()
        connection.close()


@pytest.mark.parametrize(
    ("answer", "is_alive"),
    [(make_info(num_calls=12), True), (Heard(), False), (Refused(why="no"), False)],
    ids=["info", "something else", "refused"],
)
def test_a_line_that_was_idle_is_asked(answer, is_alive):
    def lead(line):
        line.hear(Hello)
        line.say_all(Welcome(), CallStarted(id="old"), Heartbeat())
        line.hear(AskInfo)
        line.say(answer)
        line.hear_end()

    with scripted(lead) as home:
        connection = home.dial()
        connection.used_s -= 3600
        assert connection.is_alive() is is_alive
        assert connection.num_calls == (12 if is_alive else 0)
        connection.close()
