"""Search for jobs by reference, id, id prefix or name, and errors for ambiguous ones."""

from __future__ import annotations

import os
from dataclasses import replace

import pytest
from kube.api_server import Answer, serve, write_kubeconfig

import windlass as wl
from windlass.client.jobs.find_jobs import list_jobs
from windlass.errors import SpecError
from windlass.plan.plan import Facts, make_plan, render_plan
from windlass.settings import read_settings
from windlass.spec.job_spec import JobSpec
from windlass.spec.work import Script
from windlass.wire.job_folder import JobFolder
from windlass.wire.status import Phase, make_first_status, render_status


@pytest.fixture
def known(home):
    """Create ended jobs on disk from (id, name), oldest first."""

    def known(*jobs):
        for age, (job_id, name) in enumerate(reversed(jobs)):
            spec = JobSpec(work=Script(path="a.py"), name=name)
            plan = make_plan(spec, job_id=job_id, now_s=5.0, facts=Facts(environ={}))
            folder = JobFolder(home / "jobs" / job_id)
            folder.path.mkdir(parents=True)
            folder.plan.write_text(render_plan(plan))
            os.utime(folder.plan, (1e9 - age, 1e9 - age))
            status = replace(make_first_status(plan), phase=Phase.SUCCEEDED)
            folder.status.write_bytes(render_status(status))

    return known


@pytest.mark.parametrize("text", ["train-abcde", "local://train-abcde", "train-a", "t", "my run"])
def test_one_job_many_ways(known, text):
    known(("train-abcde", "my run"), ("eval-fghij", "eval"))
    job = wl.attach(text)
    assert job.id == "train-abcde"
    assert str(job.ref) == "local://train-abcde"
    assert job.done()


def test_a_whole_id_wins_over_the_start_of_another(known):
    known(("train", "a"), ("train-abcde", "b"))
    assert wl.attach("train").id == "train"


def test_an_id_wins_over_a_name_and_a_name_over_the_start_of_an_id(known):
    known(("train-abcde", "a"), ("other-abcde", "train"), ("third-abcde", "train-abcde"))
    assert wl.attach("train-abcde").id == "train-abcde"
    assert wl.attach("train").id == "other-abcde"
    assert wl.attach("third").id == "third-abcde"


def test_newest_of_several_jobs_of_a_name_is_found(known):
    known(("a-11111", "nightly"), ("b-22222", "nightly"))
    assert wl.attach("nightly").id == "b-22222"


def test_ambiguous_prefix_is_refused(known):
    known(("train-abcde", "a"), ("train-abxyz", "b"))
    with pytest.raises(
        wl.SpecError, match="'train-ab' is ambiguous: it matches train-abxyz, train-abcde"
    ) as caught:
        wl.attach("train-ab")
    assert caught.value.hint == "use more of the ID"


@pytest.mark.parametrize(
    ("text", "cls", "says"),
    [
        ("", wl.SpecError, "no job given"),
        ("nope", wl.JobNotFound, "job 'nope' not found on this machine"),
        ("kubernets://x", wl.SpecError, "unknown engine 'kubernets'"),
        ("local://../../etc", wl.JobNotFound, "not found"),
        ("local://", wl.SpecError, "no job given"),
    ],
)
def test_mistakes(known, text, cls, says):
    known(("train-abcde", "a"), ("train-abxyz", "b"))
    with pytest.raises(cls) as caught:
        wl.attach(text)
    assert says in caught.value.message
    assert caught.value.hint


def test_all_of_them_newest_first(known):
    assert wl.jobs() == []
    known(("old-1", ""), ("mid-2", ""), ("new-3", ""))
    assert [job.id for job in wl.jobs()] == ["new-3", "mid-2", "old-1"]
    assert repr(wl.jobs()[0]) == "Job('local://new-3')"


@pytest.mark.parametrize("ref", ["kubernetes://team/", "kubernetes://", "kubernetes:///"])
def test_reference_without_an_id_is_a_search(ref):
    with pytest.raises(SpecError, match="no job given"):
        wl.attach(ref)


@pytest.mark.parametrize(
    "ref", ["kubernetes://team/../x", "kubernetes://Team/x", "kubernetes://a/b_c"]
)
def test_a_reference_is_made_of_names(ref):
    with pytest.raises(SpecError, match="is not valid in a job reference"):
        wl.attach(ref)


def test_given_engine_is_listed_alone(known, home, tmp_path, monkeypatch):
    known(("train-abcde", "a"))
    folder = home / "kubernetes" / "pods-abcde"
    folder.mkdir(parents=True)
    (folder / "where.json").write_text('{"context": "", "namespace": "space"}')
    plan_of = home / "jobs" / "train-abcde"
    for name in ("plan.json", "status.json"):
        (folder / name).write_bytes((plan_of / name).read_bytes())

    def listed(environ, **flags):
        settings = read_settings(
            flags=flags, environ={**os.environ, **environ}, start=tmp_path, user_file=tmp_path / "x"
        )
        return {job.id for job in list_jobs(settings)}

    with serve(Answer(body={"items": []})) as server:
        monkeypatch.setenv("KUBECONFIG", str(write_kubeconfig(tmp_path, server=server.url)))
        assert listed({}) == {"train-abcde", "pods-abcde"}
        assert listed({"WINDLASS_ENGINE": "kubernetes"}) == {"train-abcde", "pods-abcde"}
        assert listed({}, engine="kubernetes") == {"pods-abcde"}
        assert listed({}, engine="local") == {"train-abcde"}
