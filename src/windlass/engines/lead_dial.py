"""Reaching a job's lead in a pod: port-forward and mutual TLS, for a line, or for a client that calls.

Which of several pods is the lead is found by `engines.lead_pods`; what a line carries is `engines.lead_sync`.
"""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from functools import cached_property

from windlass import names
from windlass.agent.link.tls import client_context_from, server_name
from windlass.engines.dialects.dialect import Dialect
from windlass.engines.job_watch import JobWatch
from windlass.engines.lead_pods import LeadPods, runs
from windlass.engines.lead_sync import Dial, Secure
from windlass.kube.client.api import Api
from windlass.kube.client.forward import TlsOver
from windlass.kube.objects.fields import Object, uid_of
from windlass.kube.objects.kinds import PODS

_HANDSHAKE_S = 10.0


class LeadDial:
    """The way to one compute's lead, whichever pod that is."""

    def __init__(self, api: Api, dialect: Dialect, job_id: str, keys: Mapping[str, bytes]) -> None:
        self._api = api
        self._dialect = dialect
        self._job_id = job_id
        self._context = client_context_from(keys)
        self._pods = LeadPods(job_id, self._find)

    def dial(self) -> TlsOver:
        """A connection to node 0's agent; ConnectionRefusedError while node 0 does not run."""
        connection = self._pods.reach(self._connect)
        if connection is None:
            raise ConnectionRefusedError(f"node 0 of {self._job_id} does not run")
        return connection

    @cached_property
    def _object_uid(self) -> str:
        return uid_of(self._api.get(self._dialect.kind, self._dialect.make_name(self._job_id)))

    def _find(self) -> list[Object]:
        dialect = self._dialect
        wanted = {names.LABEL_JOB: self._job_id, **dialect.lead_labels}
        labels = ",".join(f"{label}={value}" for label, value in wanted.items())
        leads = [pod for pod in self._api.list(PODS, labels=labels) if dialect.index_of(pod) == 0]
        return [pod for pod in leads if runs(pod) and dialect.owns(pod, self._object_uid)]

    def _connect(self, pod: str) -> TlsOver:
        reached = self._api.forward_in_turns(pod, names.AGENT_PORT)
        reached.settimeout(_HANDSHAKE_S)
        try:
            return TlsOver(reached, self._context, server_hostname=server_name(self._job_id))
        except BaseException:
            reached.close()
            raise


def make_dial(api: Api, job_id: str, sight: JobWatch) -> Dial:
    """How a line reaches the lead that is in sight. It keeps nothing else alive: a thread holds it."""
    pods = LeadPods(job_id, sight.find_leads, sight.distrust)

    def dial(secure: Secure) -> ssl.SSLSocket | None:
        return pods.reach(lambda pod: secure(api.forward(pod, names.AGENT_PORT)))

    return dial
