"""Contestant that is the floor of a call into a pod: one small message through a bare port-forward and back.

python benchmarks/warm_echo.py --port PORT

`warm.py` runs it, and sends it requests like any contestant.
"""

from __future__ import annotations

import argparse
import socket
from pathlib import Path
from typing import Any

from warm_side import serve

_LIMIT_S = 60.0
_MESSAGE = b"x" * 100


class EchoSide:
    """Connection to a pod that echoes what it receives."""

    ranks = 1

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), _LIMIT_S)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def call(self, name: str, *arguments: Any) -> list[Any]:
        if name != "empty":
            raise ValueError(f"the echo supports only empty calls, not {name}")
        self._socket.sendall(_MESSAGE)
        num = 0
        while num < len(_MESSAGE):
            data = self._socket.recv(65536)
            if not data:
                raise ConnectionError("the port-forward has ended")
            num += len(data)
        return [None]

    def refresh(self) -> None:
        pass

    def close(self) -> None:
        self._socket.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument(
        "--project", type=Path, required=True, help="ignored, accepted like by all contestants"
    )
    options = parser.parse_args()
    serve(lambda: EchoSide(options.port), options.project)


if __name__ == "__main__":
    main()
