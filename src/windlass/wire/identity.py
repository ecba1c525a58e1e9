"""Who may speak for a job: the names in its certificates, and the files that hold them.

Read where certificates are made and where they are checked, so that both mean the same. Pure: nothing of
keys, sockets or TLS.
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
    """The name under which every node of a job is known; no DNS server ever hears it."""
    return f"node.{_checked(job_id)}.windlass.internal"


def role_uri(job_id: str, role: str) -> str:
    """What a certificate says of its holder."""
    return f"windlass://{_checked(job_id)}/{role}"


def read_role_uri(uri: str) -> tuple[str, str]:
    """The job and the role that `role_uri` wrote."""
    match = _URI.fullmatch(uri)
    if match is None or match[2] not in ROLES or not _LABEL.fullmatch(match[1]):
        raise ProtocolError(f"a certificate names no job and role of ours: {uri!r:.120}")
    return match[1], match[2]


def _checked(job_id: str) -> str:
    if not _LABEL.fullmatch(job_id):
        raise SpecError(
            f"the job id {job_id!r:.80} cannot be part of a host name",
            hint="use at most 63 of a-z, 0-9 and -, with a letter or digit first and last",
        )
    return job_id
