"""Compare Windlass's framing with gRPC and ZeroMQ: import time, small round trip, bulk transfer.

    python -m pip install grpcio pyzmq
    python benchmarks/transports.py [--rounds 9] [--messages 2000] [--mib 64]

Each contestant has a server in a separate process, reached over a Unix socket. They take turns, and the
order is reversed every other round. All answers are compared with the sent bytes. No contestant encrypts.
"""

from __future__ import annotations

import argparse
import asyncio
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

IMPORTS = {
    "windlass": "import windlass.wire.blocking_link, windlass.wire.frames",
    "grpc": "import grpc",
    "zeromq": "import zmq",
}
METHOD = "/bench.Echo/Call"
LIMIT_BYTES = 1 << 30
START_S = 10.0
Echo = Callable[[bytes], bytes]


def serve_windlass(address: str) -> None:
    """Answer each frame with the same body, in an event loop like an agent's."""
    from windlass.wire.frames import FrameDecoder, render_pieces
    from windlass.wire.messages.link import Heartbeat, Welcome

    class Server(asyncio.BufferedProtocol):
        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            self.transport = transport
            self.decoder, self.buffer, self.is_in_place = FrameDecoder(), bytearray(1 << 16), False

        def get_buffer(self, _hint: int) -> memoryview:
            place = self.decoder.place()
            self.is_in_place = place is not None
            self.view = place if place is not None else memoryview(self.buffer)
            return self.view

        def buffer_updated(self, count: int) -> None:
            if self.is_in_place:
                self.view.release()
                self.decoder.placed(count)
            else:
                self.decoder.feed(bytes(self.view[:count]))
            while (frame := self.decoder.take()) is not None:
                assert frame.type == Heartbeat.kind
                for piece in render_pieces(Welcome(), (frame.body,)):
                    self.transport.write(piece)  # type: ignore[attr-defined]

    async def run() -> None:
        server = await asyncio.get_running_loop().create_unix_server(Server, address)
        await server.serve_forever()

    asyncio.run(run())


def serve_grpc(address: str) -> None:
    from concurrent.futures import ThreadPoolExecutor

    import grpc

    handler = grpc.unary_unary_rpc_method_handler(lambda request, _context: request)
    service = grpc.method_handlers_generic_handler("bench.Echo", {"Call": handler})
    server = grpc.server(ThreadPoolExecutor(4), options=_grpc_options())
    server.add_generic_rpc_handlers((service,))
    server.add_insecure_port(f"unix:{address}")
    server.start()
    server.wait_for_termination()


def serve_zeromq(address: str) -> None:
    import zmq

    replier = zmq.Context().socket(zmq.REP)
    replier.bind(f"ipc://{address}")
    while True:
        replier.send(replier.recv(copy=False), copy=False)


def _grpc_options() -> list[tuple[str, int]]:
    names = ("grpc.max_receive_message_length", "grpc.max_send_message_length")
    return [(name, LIMIT_BYTES) for name in names]


def dial_windlass(address: str) -> Echo:
    from windlass.wire.blocking_link import BlockingLink
    from windlass.wire.message import Direction
    from windlass.wire.messages.link import Heartbeat, Welcome

    stream = socket.socket(socket.AF_UNIX)
    stream.connect(address)
    link = BlockingLink(stream, Direction("server", "client", "", Welcome))

    def echo(body: bytes) -> bytes:
        link.send(Heartbeat(), (body,))
        received = link.receive(60.0)
        assert received is not None
        return received.body

    return echo


def dial_grpc(address: str) -> Echo:
    import grpc

    channel = grpc.insecure_channel(f"unix:{address}", options=_grpc_options())
    return channel.unary_unary(METHOD)


def dial_zeromq(address: str) -> Echo:
    import zmq

    requester = zmq.Context().socket(zmq.REQ)
    requester.connect(f"ipc://{address}")

    def echo(body: bytes) -> bytes:
        requester.send(body, copy=False)
        return requester.recv(copy=False).buffer

    return echo


SERVERS = {"windlass": serve_windlass, "grpc": serve_grpc, "zeromq": serve_zeromq}
DIALS = {"windlass": dial_windlass, "grpc": dial_grpc, "zeromq": dial_zeromq}


def measure_import(name: str) -> float:
    """Return the CPU seconds that a fresh interpreter needs for the import."""
    code = f"import time; t = time.process_time(); {IMPORTS[name]}; print(time.process_time() - t)"
    ran = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    return float(ran.stdout)


def measure_round_trip(echo: Echo, messages: int) -> float:
    body, taken = b"x" * 200, []
    for _ in range(messages):
        start = time.perf_counter()
        answer = echo(body)
        taken.append(time.perf_counter() - start)
        assert bytes(answer) == body
    return statistics.median(taken)


def measure_bulk(echo: Echo, mib: int) -> float:
    """Return the seconds that `mib` MiB take in both directions."""
    body = bytes(mib << 20)
    start = time.perf_counter()
    answer = echo(body)
    taken = time.perf_counter() - start
    assert len(answer) == len(body)
    return taken


def dial(name: str, address: str) -> Echo:
    """Connect once the server's socket exists."""
    deadline = time.monotonic() + START_S
    while not Path(address).exists():
        if time.monotonic() > deadline:
            raise SystemExit(f"{name}: the server did not start in {START_S:g} s")
        time.sleep(0.02)
    echo = DIALS[name](address)
    echo(b"warm-up")
    return echo


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--messages", type=int, default=2000)
    parser.add_argument("--mib", type=int, default=64)
    parser.add_argument("--serve", nargs=2, metavar=("NAME", "ADDRESS"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        SERVERS[options.serve[0]](options.serve[1])
        return
    with tempfile.TemporaryDirectory() as folder:
        places = {name: f"{folder}/{name}" for name in SERVERS}
        here = [sys.executable, __file__, "--serve"]
        servers = [subprocess.Popen([*here, name, place]) for name, place in places.items()]
        try:
            show(measure(places, options))
        finally:
            for server in servers:
                server.kill()
                server.wait()


def measure(places: dict[str, str], options: argparse.Namespace) -> dict[str, list[list[float]]]:
    echoes = {name: dial(name, place) for name, place in places.items()}
    taken: dict[str, list[list[float]]] = {name: [[], [], []] for name in echoes}
    for number in range(options.rounds):
        order = list(echoes)[:: -1 if number % 2 else 1]
        for name in order:
            taken[name][0].append(measure_import(name))
            taken[name][1].append(measure_round_trip(echoes[name], options.messages))
            taken[name][2].append(measure_bulk(echoes[name], options.mib))
    return taken


def show(taken: dict[str, list[list[float]]]) -> None:
    medians = {name: [statistics.median(one) for one in rows] for name, rows in taken.items()}
    ours = medians["windlass"]
    print(f"{'':10} {'import':>16} {'round trip':>18} {'bulk, both ways':>20}")
    for name, (imported, trip, bulk) in medians.items():
        print(
            f"{name:10} {imported * 1e3:6.1f} ms ({imported / ours[0]:4.2f}x)"
            f" {trip * 1e6:6.0f} us ({trip / ours[1]:4.2f}x)"
            f" {bulk * 1e3:8.1f} ms ({bulk / ours[2]:4.2f}x)"
        )


if __name__ == "__main__":
    main()
