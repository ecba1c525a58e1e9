"""Hidden values: every rank has them in every attempt, and nothing readable afterwards contains them."""

from __future__ import annotations

import hashlib
import json
import os
import secrets

import pytest
from kept_files import files_with

import windlass as wl
from windlass import names, records
from windlass.client.jobs.job import Job
from windlass.client.jobs.run import prepare_job
from windlass.kube.objects.kinds import PODS
from windlass.plan.plan import render_plan


def digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def make_look():
    """Return a function that is sent by value, because pods have no pytest."""

    def look(variables):
        """Return hashes of the variables, so that no value appears in the result."""
        import hashlib
        import os

        if int(os.environ["WINDLASS_ATTEMPT"]) == 0:
            raise RuntimeError("once more")
        return [hashlib.sha256(os.environ[name].encode()).hexdigest() for name in variables]

    return look


def submit(on, target, args, hidden, **flags):
    prepared = prepare_job(target, args, detach=True, flags={"engine": on.engine, **flags})
    ref = prepared.engine.submit(prepared.plan, prepared.payload, prepared.bundle, hidden=hidden)
    job = Job(prepared.engine, ref)
    on.submitted.append(job)
    return prepared, job


@pytest.mark.parametrize("start", ["fork", "spawn"])
def test_only_ranks_have_hidden_values(on, home, start):
    value, odd = secrets.token_hex(16), f"{secrets.token_hex(8)} $(HOME) 'ü'\nmore"
    hidden = {"A_TOKEN": value, "AN_ODD_ONE": odd}
    prepared, job = submit(
        on, make_look(), (list(hidden),), hidden, nodes=2, procs=2, restarts=1, start=start
    )
    # read the object before the job ends, because it may be removed then
    shown = [] if on.space is None else [on.space.api.get(on.kind, job.id)]
    assert job.results(timeout_s=120) == [[digest(value), digest(odd)]] * 4
    assert "A_TOKEN" not in os.environ
    # neither the local files nor the plan, the dry run or the status contain a value
    assert files_with(home, value) == []
    assert value not in render_plan(prepared.plan)
    assert value not in json.dumps(prepared.engine.render(prepared.plan))
    assert value not in json.dumps(records.to_json(job.status()))
    if on.space is not None:
        shown += on.space.api.list(PODS, labels=f"{names.LABEL_JOB}={job.id}")
        assert "env.A_TOKEN" in json.dumps(shown)
        assert value not in json.dumps(shown)


@pytest.mark.cluster_only("only pods have files of a Secret")
@pytest.mark.engine_matters
def test_hidden_values_are_not_files_of_a_pod(on):
    value = secrets.token_hex(16)

    def list_secret():
        import os

        return sorted(os.listdir("/windlass/secret"))

    _, job = submit(on, list_secret, (), {"A_TOKEN": value})
    (found,) = job.results(timeout_s=120)
    assert "plan.json" in found
    assert not [name for name in found if "A_TOKEN" in name]


@pytest.mark.quick
@pytest.mark.parametrize(
    ("hidden", "message"),
    [
        ({"RANK": "s3cret"}, "RANK is set by Windlass"),
        ({"WINDLASS_JOB_ID": "s3cret"}, "WINDLASS_JOB_ID is set by Windlass"),
        ({"NOT A NAME": "s3cret"}, "invalid environment variable name 'NOT A NAME'"),
        ({"NUL": "s3cret\0"}, "the value of NUL contains a NUL"),
    ],
    ids=["of torchrun", "ours", "no name", "no value"],
)
def test_what_cannot_be_set_is_refused_without_showing_it(on, hidden, message):
    with pytest.raises(wl.SpecError, match=message) as caught:
        submit(on, make_look(), ([],), hidden)
    assert "s3cret" not in str(caught.value)
    assert wl.jobs() == []
