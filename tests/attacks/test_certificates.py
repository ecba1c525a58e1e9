"""Attack: a node's certificate used as a client's, another job's certificate, an expired one.

The lead refuses all of them. Certificates of work without a time limit outlive it, and clients report expired
ones.
"""

from __future__ import annotations

import time
from dataclasses import replace

import pytest
from cryptography import x509
from kube.plans import make_pod_plan
from pod_connections import run_lead_server
from tls_peers import (
    JOB,
    connect_lead,
    join,
    run_with_lead,
    until,
    write_certificates,
    write_with_expired_client,
)

from windlass.agent.link import endpoints
from windlass.agent.link.tcp import TlsPlace
from windlass.engines.cluster.job_secret import make_job_certificates
from windlass.engines.cluster.lead_pods import KeysExpired, LeadPods
from windlass.engines.cluster.lead_sync import LeadSync
from windlass.errors import ProtocolError
from windlass.spec.work import Calls
from windlass.wire import tls
from windlass.wire.job_folder import JobFolder

DAY_S = 86_400.0


@pytest.mark.parametrize(("cert", "role"), [("node", "client"), ("client", "node")])
def test_certificate_is_valid_only_for_its_role(tmp_path, cert, role):
    """Ranks can read their node's key. It must not let them act as a client and give orders."""

    async def visit(scene):
        context = tls.client_context(scene.files, cert)
        place = TlsPlace(host="127.0.0.1", port=scene.port, context=context)
        node = 1 if role == "node" else None
        with pytest.raises(ProtocolError, match="certificate"):
            await endpoints.connect(place, role=role, job_id=JOB, node=node, timeout_s=20.0)
        assert not scene.lead_server._readers
        assert scene.state(1) == "pending"

    run_lead_server(tmp_path, visit)


def test_certificate_of_another_job_is_refused(tmp_path):
    """The other job has the same namespace and name, and its certificates were made the same way."""
    other = write_certificates(tmp_path / "other", JOB)

    async def visit(listener):
        for cert in ("node", "client"):
            with pytest.raises((ProtocolError, OSError)):
                await join(other, listener.port, cert=cert, timeout_s=2.0)

    run_with_lead(write_certificates(tmp_path / "own"), visit)


def test_lead_refuses_expired_certificate(tmp_path):
    files = write_with_expired_client(tmp_path / "tls")

    async def visit(listener):
        with pytest.raises((ProtocolError, OSError)):
            await join(files, listener.port, cert="client", timeout_s=2.0)

    run_with_lead(files, visit)


def test_client_reports_expired_certificates(tmp_path, caplog):
    files = write_certificates(tmp_path / "tls", age_days=11)
    pods = [{"metadata": {"name": "lead", "uid": "u", "creationTimestamp": "2026-01-31T12:00:00Z"}}]
    leads = LeadPods(JOB, lambda: pods)
    folder = JobFolder(tmp_path / "client")
    folder.path.mkdir()

    async def visit(listener):
        def dial():
            return leads.reach(lambda _pod: connect_lead(listener.port, files))

        sync = LeadSync(JOB, folder, dial)
        try:
            await until(lambda: sync.expired is not None, "it reports the expired certificates")
            assert isinstance(sync.expired, KeysExpired)
            assert "certificate has expired" in sync.expired.message
            assert f"windlass cancel {JOB}" in sync.expired.hint
        finally:
            sync.close()

    run_with_lead(files, visit)
    assert not [r for r in caplog.records if "does not have the job's key" in r.getMessage()]


@pytest.mark.parametrize(
    ("asked", "least_days"),
    [
        ({"work": Calls()}, 3650 - 1),  # a compute without an end
        ({}, 3650 - 1),  # a job without a time limit
        ({"timeout_s": 90 * DAY_S}, 120 - 1),  # its time limit plus 30 days in a queue
    ],
)
def test_certificates_outlive_their_work(asked, least_days):
    plan = replace(make_pod_plan(**asked), created_at_s=time.time())
    for name, pem in make_job_certificates(plan).items():
        if name.endswith(".crt"):
            left_s = x509.load_pem_x509_certificate(pem).not_valid_after_utc.timestamp()
            assert left_s - time.time() > least_days * DAY_S, name
