"""Certificates on disk, a lead that serves with them, and peers of every kind that connect to it."""

from __future__ import annotations

import asyncio
import socket
import time
from datetime import datetime, timedelta, timezone
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID

from windlass.agent.link import endpoints
from windlass.agent.link.tcp import TlsPlace
from windlass.engines.cluster import job_secret
from windlass.engines.cluster.lead_connection import LeadConnection
from windlass.wire import tls

JOB = "train-ab12c"
DAY_S = 86_400


def write_certificates(folder: Path, job_id: str = JOB, *, age_days: float = 0.0) -> Path:
    """Write a job's certificates, valid for ten days from the time they were made."""
    made_at_s = time.time() - age_days * DAY_S
    files = job_secret.make_certificates(job_id, now_s=made_at_s, valid_s=10 * DAY_S)
    return write_files(folder, files)


def write_files(folder: Path, files: dict[str, bytes]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for name, data in files.items():
        (folder / name).write_bytes(data)
    return folder


def write_with_expired_client(folder: Path) -> Path:
    """Write certificates of which only the client's has expired."""
    now = datetime.now(tz=timezone.utc).replace(microsecond=0)
    day = timedelta(days=1)
    ca_key, client_key, node_key = (ec.generate_private_key(ec.SECP256R1()) for _ in range(3))
    ca = job_secret._sign_ca(JOB, ca_key, (now - day, now + day))
    old_ca = job_secret._sign_ca(JOB, ca_key, (now - 9 * day, now - day))
    uses = ExtendedKeyUsageOID
    client = job_secret._sign(
        *(JOB, client_key, old_ca, ca_key), uri=f"windlass://{JOB}/client", uses=[uses.CLIENT_AUTH]
    )
    node = job_secret._sign(
        *(JOB, node_key, ca, ca_key),
        uri=f"windlass://{JOB}/node",
        dns=tls.server_name(JOB),
        uses=[uses.SERVER_AUTH, uses.CLIENT_AUTH],
    )
    files = {
        "ca.crt": job_secret._pem(ca),
        "client.crt": job_secret._pem(client),
        "client.key": job_secret._key_pem(client_key),
        "node.crt": job_secret._pem(node),
        "node.key": job_secret._key_pem(node_key),
    }
    return write_files(folder, files)


class SocketStream(socket.socket):
    """Connected socket that serves as the stream below a lead's TLS."""

    def pending(self) -> bool:
        return False


def secure(connection: socket.socket, folder: Path, job_id: str = JOB) -> LeadConnection:
    """Return a client's TLS connection over a socket, with the files in `folder`."""
    context = tls.client_context(folder, "client")
    return LeadConnection(SocketStream(fileno=connection.detach()), context, job_id)


def connect_lead(port: int, folder: Path) -> LeadConnection:
    """Connect to a lead on this machine, with the files in `folder`."""
    return secure(socket.create_connection(("127.0.0.1", port), timeout=20), folder)


async def echo(link, _hello, frames):
    async for frame in frames:
        link.send({"type": "echo", "of": dict(frame.header)}, frame.body)


def run_with_lead(folder, visit, handler=echo, *, host="127.0.0.1"):
    """Serve with the files in `folder`, run `visit(listener)` and return its result."""

    async def run():
        place = TlsPlace(host=host, port=0, context=tls.server_context(folder))
        listener = await endpoints.serve(place, JOB, handler)
        try:
            return await asyncio.wait_for(visit(listener), timeout=60)
        finally:
            listener.close()
            await settle()

    return asyncio.run(run())


async def settle() -> None:
    """Wait until both sides of every link have ended."""
    others = asyncio.all_tasks() - {asyncio.current_task()}
    if others:
        await asyncio.wait(others, timeout=10)
    for _ in range(3):  # a closed transport closes its socket in the next iterations of the loop
        await asyncio.sleep(0)


async def until(is_so, what: str, timeout_s: float = 30.0) -> None:
    """Wait in the event loop until a condition holds, with a deadline."""
    deadline = time.monotonic() + timeout_s
    while not is_so():
        assert time.monotonic() < deadline, f"after {timeout_s} s still not: {what}"
        await asyncio.sleep(0.005)


async def join(folder, port, *, cert="node", role=None, node=1, host="127.0.0.1", timeout_s=20.0):
    """Connect as a well-behaved peer."""
    place = TlsPlace(host=host, port=port, context=tls.client_context(folder, cert))
    return await endpoints.connect(
        place, role=role or cert, job_id=JOB, node=node, timeout_s=timeout_s
    )


async def ask(link, body=b"ping"):
    """Send one frame and return all frames up to and including its echo."""
    link.send({"type": "ask"}, body)
    seen = []
    async for frame in link.frames():
        seen.append(frame)
        if frame.type == "echo":
            break
    return seen
