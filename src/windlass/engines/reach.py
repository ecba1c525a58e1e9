"""Reaching the lead of a compute in a pod: port-forward and mutual TLS, for whoever wants to say something.

A connection a time. The line that copies a job's files is `engines.line`.
"""

from __future__ import annotations

from collections.abc import Mapping

from windlass import names
from windlass.agent.tls import client_context_from, server_name
from windlass.kube.api import Api
from windlass.kube.fields import container_of, name_of
from windlass.kube.kinds import PODS
from windlass.kube.turns import TlsOver

_HANDSHAKE_S = 10.0


def dial_lead(api: Api, job_id: str, keys: Mapping[str, bytes]) -> TlsOver:
    """A connection to node 0's agent; ConnectionRefusedError while node 0 does not run."""
    labels = f"{names.LABEL_JOB}={job_id},{names.LABEL_INDEX}=0"
    running = [
        pod
        for pod in api.list(PODS, labels=labels)
        if container_of(pod).get("state", {}).get("running")
        and not pod["metadata"].get("deletionTimestamp")
    ]
    if not running:
        raise ConnectionRefusedError(f"node 0 of {job_id} does not run")
    newest = max(running, key=lambda pod: str(pod["metadata"].get("creationTimestamp")))
    reached = api.forward_in_turns(name_of(newest), names.AGENT_PORT)
    reached.settimeout(_HANDSHAKE_S)
    try:
        return TlsOver(reached, client_context_from(keys), server_hostname=server_name(job_id))
    except BaseException:
        reached.close()
        raise
