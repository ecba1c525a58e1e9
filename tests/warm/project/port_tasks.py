"""Server that runs on node 0 in the tests of `port-forward`."""

from __future__ import annotations

import socket


def answer(port, num_connections):
    """Answer each connection with the received bytes in upper case."""
    with socket.create_server(("", port)) as server:
        for _ in range(num_connections):
            connection, _ = server.accept()
            with connection:
                while data := connection.recv(1024):
                    connection.sendall(data.upper())
    return port
