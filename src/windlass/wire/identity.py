"""Identities of a job: the names in its certificates, and the files that hold them.

The code that creates certificates and the code that checks them both import this module, so they agree.
It performs no I/O and does not handle keys, sockets or TLS.
"""

from __future__ import annotations

import re

from windlass import names
from windlass.errors import ProtocolError, SpecError

CA_CRT = "ca.crt"
NODE_CRT = "node.crt"
NODE_KEY = "node.key"
CLIENT_CRT = "client.crt"
CLIENT_KEY = "client.key"
CERTIFICATES = (CA_CRT, NODE_CRT, NODE_KEY, CLIENT_CRT, CLIENT_KEY)

NODE = "node"
CLIENT = "client"
ROLES = (NODE, CLIENT)

_LABEL = re.compile(names.DNS_LABEL)
_URI = re.compile(r"windlass://([^/]+)/([^/]+)")


def server_name(job_id: str) -> str:
    """Return the TLS server name of every node of a job. It is never looked up in DNS."""
    return f"node.{_checked(job_id)}.windlass.internal"


def role_uri(job_id: str, role: str) -> str:
    """Return the URI in a certificate that names its job and role."""
    return f"windlass://{_checked(job_id)}/{role}"


def read_role_uri(uri: str) -> tuple[str, str]:
    """Return the job and the role in a URI that `role_uri` made."""
    match = _URI.fullmatch(uri)
    if match is None or match[2] not in ROLES or not _LABEL.fullmatch(match[1]):
        raise ProtocolError(f"a certificate's URI has no valid job and role: {uri!r:.120}")
    return match[1], match[2]


def _checked(job_id: str) -> str:
    if not _LABEL.fullmatch(job_id):
        raise SpecError(
            f"invalid job ID {job_id!r:.80}: it must be valid in a host name",
            hint="use at most 63 lowercase letters, digits and hyphens, starting and ending without a hyphen",
        )
    return job_id
