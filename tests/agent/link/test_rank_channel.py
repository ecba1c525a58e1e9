"""Socket pair between a node and a rank: frames of any size arrive in order, and either end can close."""

from __future__ import annotations

import asyncio
import os
import threading

from windlass.agent.link.rank_channel import NodeEnd, RankEnd
from windlass.wire.frames import render_frame
from windlass.wire.messages.computes import MakeObject

WAIT_S = 20.0


async def converse(rank, sent=(), num_answers=0):
    """Send frames to `rank`, which runs in a thread with the other end, and return its answers."""
    found, done = [], asyncio.Event()

    def hear(frame):
        found.append((dict(frame.header), bytes(frame.body)))
        if len(found) == num_answers:
            done.set()

    node = NodeEnd(asyncio.get_running_loop(), hear)
    end = RankEnd(os.dup(node.rank_fd))
    thread = threading.Thread(target=rank, args=(end,))
    node.close_rank_end()
    thread.start()
    for header, body in sent:
        node.send(render_frame(header, body))
    if num_answers:
        await asyncio.wait_for(done.wait(), WAIT_S)
    node.close()
    await asyncio.to_thread(thread.join, WAIT_S)
    assert not thread.is_alive()
    end._link.close()  # a real rank's end is closed with its process
    return found


def test_frames_arrive_complete_and_in_order():
    sizes = [0, 1, 70_000, 3_000_000, 5, 400_000]
    sent = [(MakeObject(sizes=[n]).to_header(), bytes([n]) * size) for n, size in enumerate(sizes)]

    def echo(end):
        while (received := end.receive()) is not None:
            message, body = received
            half = len(body) // 2
            end.send(message, [memoryview(body)[:half], memoryview(body)[half:]])

    assert asyncio.run(converse(echo, sent, len(sent))) == sent


def test_waiting_rank_gets_none_when_the_node_closes():
    received_by_rank = []
    asyncio.run(converse(lambda end: received_by_rank.append(end.receive())))
    assert received_by_rank == [None]


def test_rank_can_send_to_a_closed_node():
    def speak(end):
        assert end.receive() is None
        end.send(MakeObject(sizes=[]), [b"x" * 1_000_000])

    asyncio.run(converse(speak))


def test_stray_bytes_of_user_code_end_the_channel():
    async def garble():
        received_by_rank = []
        node = NodeEnd(asyncio.get_running_loop(), received_by_rank.append)
        end = os.dup(node.rank_fd)
        node.close_rank_end()
        os.write(end, b"\xff" * 64)
        os.close(end)
        while node.read():
            pass
        node.send(b"more")  # no rank receives it
        node.close()
        return received_by_rank

    assert asyncio.run(garble()) == []
