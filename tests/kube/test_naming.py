"""Names and labels: valid for any job name, and unique among the volumes of a job."""

from __future__ import annotations

import re

from hypothesis import given, settings
from hypothesis import strategies as st
from kube.plans import make_pod_plan

from windlass import names
from windlass.client.jobs.job_ids import MAX_ID
from windlass.kube.objects.naming import (
    claim_name,
    headless_name,
    label_value,
    lead_name,
    make_annotations,
    make_labels,
    name_volumes,
    object_name,
)
from windlass.spec.storage import EmptyDir
from windlass.spec.work import Script

DNS_1035 = re.compile(r"[a-z]([-a-z0-9]{0,61}[a-z0-9])?")
LABEL = re.compile(r"([A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)?")


@given(st.from_regex(rf"[a-z]([-a-z0-9]{{0,{MAX_ID - 2}}}[a-z0-9])?", fullmatch=True))
def test_names_made_from_an_id_are_valid(job_id):
    for name in (headless_name(job_id), lead_name(job_id)):
        assert DNS_1035.fullmatch(name)
    assert len(f"{job_id}-{99999}") <= 63  # also a pod's host name


@given(st.text())
def test_any_text_is_a_label(text):
    assert LABEL.fullmatch(label_value(text))


@given(st.text(), st.integers(8, 50))
def test_any_text_is_a_name_or_nothing(text, most):
    name = object_name(text, most)
    assert not name or (DNS_1035.fullmatch(name) and len(name) <= most)


def test_names_resemble_the_original():
    assert object_name("Mein Größter Lauf", 50) == "mein-groter-lauf"
    assert object_name("3D", 50) == "job-3d"
    assert label_value("my run / 2") == "my-run-2"


paths = st.text("ab-_/.", min_size=1, max_size=60).map(lambda text: f"/{text}")


@settings(deadline=None)
@given(st.lists(paths, max_size=6, unique=True))
def test_volume_names_are_unique(found):
    mounts = [EmptyDir(path=path) for path in found]
    named = name_volumes(mounts, ("shm",))
    assert len(set(named)) == len(named)
    for name in named:
        assert re.fullmatch(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?", name)
        assert name != "shm"
        assert re.fullmatch(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?", claim_name("a" * 50, name))


def test_volumes_are_named_after_their_path():
    mounts = [EmptyDir(path=path) for path in ("/data", "/mnt/a", "/mnt-a", "/shm")]
    assert name_volumes(mounts, ("shm",)) == ["data", "mnt-a", "mnt-a-2", "shm-2"]


@settings(deadline=None)
@given(st.text(), st.text())
def test_labels_and_annotations_are_valid_for_any_work(name, path):
    plan = make_pod_plan(name=name, work=Script(path=path))
    for value in make_labels(plan).values():
        assert LABEL.fullmatch(value)
    work = make_annotations(plan, "s")[names.ANNOTATION_WORK]
    assert len(work) <= 1000
    assert work.encode().decode() == work  # would fail with a lone surrogate
