"""Certificates: a node's used as a client's, another job's, an expired one. Who shows one is not let in.

And those of what may run for ever do not end while it runs; where some have ended, that is told.
"""

from __future__ import annotations

import time
from dataclasses import replace

import pytest
from cryptography import x509
from kube.plans import make_pod_plan
from pod_connections import run_at_door
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
def test_a_certificate_counts_for_its_own_role_alone(tmp_path, cert, role):
    """Ranks can read their node's key: with it they are a node, and no client that gives orders."""

    async def visit(scene):
        context = tls.client_context(scene.files, cert)
        place = TlsPlace(host="127.0.0.1", port=scene.port, context=context)
        node = 1 if role == "node" else None
        with pytest.raises(ProtocolError, match="certificate"):
            await endpoints.connect(place, role=role, job_id=JOB, node=node, timeout_s=20.0)
        assert not scene.lead_server._readers
        assert scene.state(1) == "pending"

    run_at_door(tmp_path, visit)


def test_another_jobs_certificate_is_no_key_to_this_one(tmp_path):
    """Of the same namespace, made the same way, even of the same name."""
    other = write_certificates(tmp_path / "other", JOB)

    async def visit(listener):
        for cert in ("node", "client"):
            with pytest.raises((ProtocolError, OSError)):
                await join(other, listener.port, cert=cert, timeout_s=2.0)

    run_with_lead(write_certificates(tmp_path / "own"), visit)


def test_an_expired_certificate_is_refused_by_the_lead(tmp_path):
    files = write_with_expired_client(tmp_path / "tls")

    async def visit(listener):
        with pytest.raises((ProtocolError, OSError)):
            await join(files, listener.port, cert="client", timeout_s=2.0)

    run_with_lead(files, visit)


def test_a_client_that_meets_ended_certificates_says_so_and_calls_nobody_an_impostor(
    tmp_path, caplog
):
    files = write_certificates(tmp_path / "tls", age_days=11)
    pods = [{"metadata": {"name": "lead", "uid": "u", "creationTimestamp": "2026-01-31T12:00:00Z"}}]
    leads = LeadPods(JOB, lambda: pods)
    folder = JobFolder(tmp_path / "client")
    folder.path.mkdir()

    async def visit(listener):
        def dial():
            return leads.reach(lambda _pod: connect_lead(listener.port, files))

        line = LeadSync(JOB, folder, dial)
        try:
            await until(lambda: line.expired is not None, "it says that they have ended")
            assert isinstance(line.expired, KeysExpired)
            assert "certificate has expired" in line.expired.message
            assert f"windlass cancel {JOB}" in line.expired.hint
        finally:
            line.close()

    run_with_lead(files, visit)
    assert not [r for r in caplog.records if "does not hold the job's key" in r.getMessage()]


@pytest.mark.parametrize(
    ("asked", "least_days"),
    [
        ({"work": Calls()}, 3650 - 1),  # a compute that stays for ever
        ({}, 3650 - 1),  # a job that may run as long as it likes
        ({"timeout_s": 90 * DAY_S}, 120 - 1),  # its limit, and a month in a queue
    ],
)
def test_certificates_do_not_end_before_what_they_are_for(asked, least_days):
    plan = replace(make_pod_plan(**asked), created_at_s=time.time())
    for name, pem in make_job_certificates(plan).items():
        if name.endswith(".crt"):
            left_s = x509.load_pem_x509_certificate(pem).not_valid_after_utc.timestamp()
            assert left_s - time.time() > least_days * DAY_S, name
