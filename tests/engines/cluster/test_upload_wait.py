"""A submission with code too large for a Secret waits for its first pod, and reports what blocks it."""

from __future__ import annotations

from dataclasses import replace

import pytest
from cluster_engines import make_job_plan

from windlass import names, waiting
from windlass.engines.cluster.job_secret import MAX_INPUT_BYTES
from windlass.engines.dialects.pytorchjob import PYTORCHJOB
from windlass.engines.dialects.trainjob import TRAINJOB
from windlass.plan.plan import Input
from windlass.settings import read_settings


@pytest.mark.parametrize("dialect", [TRAINJOB, PYTORCHJOB], indirect=True)
def test_submit_reports_what_it_waits_for_and_times_out(
    engine, cluster, dialect, monkeypatch, caplog, tmp_path
):
    monkeypatch.setattr(waiting, "_SAY_EVERY_S", 0.2)
    flags = {"join_timeout_s": 2}
    engine._settings = read_settings(flags=flags, environ={"HOME": str(tmp_path)}, start=tmp_path)
    payload = bytes(MAX_INPUT_BYTES + 1)
    large = Input(name=names.PAYLOAD_FILE, size_bytes=len(payload), sha256="0")
    plan = replace(make_job_plan(dialect), inputs=(large,))
    ref = engine.submit(plan, payload)
    warnings = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert f"{ref.job_id}: files too large for a Secret are sent once node 0 runs" in warnings[0]
    verdict = engine.status(ref).verdict
    assert verdict is not None
    assert "2 s" in verdict.message
    assert cluster.objects[dialect.kind.plural] == [], "it was given up"
