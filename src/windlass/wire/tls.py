"""TLS between the machines of one job. Both sides present a certificate of the job's own CA.

This module creates contexts from the job's files and reads the role in a peer's certificate. It accepts TLS
1.3 only, and checks certificates on every Python as strictly as Python 3.13 does by default. It uses only the
standard library, opens no sockets and creates no certificates.
"""

from __future__ import annotations

import os
import ssl
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from windlass.errors import EngineError, ProtocolError
from windlass.wire import identity
from windlass.wire.identity import server_name

__all__ = ["client_context", "client_context_from", "read_role", "server_context", "server_name"]


def server_context(folder: Path) -> ssl.SSLContext:
    """Return the context of a listening node, which requires a certificate of the same CA."""
    context = _context(ssl.PROTOCOL_TLS_SERVER, _read(folder / identity.CA_CRT))
    context.verify_mode = ssl.CERT_REQUIRED
    # A resumed session would skip the check, and peers reconnect too rarely to benefit from one.
    context.num_tickets = 0
    _show(context, folder / identity.NODE_CRT, folder / identity.NODE_KEY)
    return context


def client_context(folder: Path, cert: Literal["node", "client"] = "node") -> ssl.SSLContext:
    """Return the context of a process that connects to a node.

    `server_hostname` must be the job's `server_name`.
    """
    context = _context(ssl.PROTOCOL_TLS_CLIENT, _read(folder / identity.CA_CRT))
    _show(context, folder / f"{cert}.crt", folder / f"{cert}.key")
    return context


def client_context_from(files: Mapping[str, bytes]) -> ssl.SSLContext:
    """Return a client's context from files in memory.

    The certificate and its key are on disk only while they are read.
    """
    wanted = (identity.CA_CRT, identity.CLIENT_CRT, identity.CLIENT_KEY)
    if missing := [name for name in wanted if name not in files]:
        raise EngineError(
            f"the job's certificates lack {', '.join(missing)}",
            hint="the job's Secret is incomplete; submit the job again",
        )
    import tempfile  # only clients need it, so agents start without it

    with tempfile.TemporaryDirectory(prefix="windlass-") as made:  # mode 0700
        folder = Path(made)
        for name in wanted:
            opened = os.open(folder / name, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            with os.fdopen(opened, "wb") as file:
                file.write(files[name])
        return client_context(folder, "client")


def read_role(peercert: Mapping[str, Any] | None) -> tuple[str, str]:
    """Return the job and role in a peer's certificate, as returned by `SSLSocket.getpeercert()`."""
    known_as = (peercert or {}).get("subjectAltName", ())
    uris = [value for kind, value in known_as if kind == "URI"]
    if len(uris) != 1:
        raise ProtocolError(f"the peer's certificate has {len(uris)} roles instead of one")
    return identity.read_role_uri(uris[0])


def _context(protocol: int, ca_pem: bytes) -> ssl.SSLContext:
    context = ssl.SSLContext(protocol)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.verify_flags |= ssl.VERIFY_X509_STRICT
    try:
        context.load_verify_locations(cadata=ca_pem.decode("ascii"))
    except (ssl.SSLError, ValueError) as error:
        raise _unreadable(identity.CA_CRT, error) from error
    return context


def _show(context: ssl.SSLContext, certificate: Path, key: Path) -> None:
    for path in (certificate, key):
        _read(path)  # ssl's own error does not name the missing file
    try:
        # Without this, ssl would prompt on the terminal for the password of an encrypted key.
        context.load_cert_chain(certificate, key, password=lambda: "")
    except (ssl.SSLError, ValueError) as error:
        raise _unreadable(f"{certificate.name} and {key.name}", error) from error


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise EngineError(
            f"the job's certificates cannot be read: {error}",
            hint="submit the job again; its Secret may be incomplete or not mounted",
        ) from error


def _unreadable(what: str, error: Exception) -> EngineError:
    return EngineError(
        f"{what} cannot be used: {error}",
        hint="submit the job again; its Secret was changed",
    )
