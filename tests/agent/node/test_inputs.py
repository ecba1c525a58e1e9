"""Inputs of a node before its ranks start: each must match the plan, and is unpacked or linked."""

from __future__ import annotations

import hashlib
import io
from dataclasses import replace

import pytest
from bundle.trees import File, read_tree, write_tree
from kube.plans import make_pod_plan

from windlass import names
from windlass.agent.inputs import Inputs
from windlass.bundle.archive import write_archive
from windlass.bundle.collect import collect
from windlass.bundle.manifest import EMPTY, make_delta
from windlass.errors import BundleError
from windlass.plan.plan import Input
from windlass.wire.job_folder import JobFolder

TREE = {"train.py": File(b"print('hello')\n"), "sub/run.sh": File(b"#!/bin/sh\n", executable=True)}


@pytest.fixture
def bundle(tmp_path):
    write_tree(tmp_path / "project", TREE)
    packed = io.BytesIO()
    write_archive(
        tmp_path / "project",
        make_delta(EMPTY, collect(tmp_path / "project").manifest),
        packed,
    )
    return packed.getvalue()


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "job").mkdir()
    return JobFolder(tmp_path / "job")


@pytest.fixture
def secret(tmp_path):
    (tmp_path / "secret").mkdir()
    return tmp_path / "secret"


def make_inputs(folder, **files):
    """Return the inputs of a node that waits for these files."""
    found = {"payload": names.PAYLOAD_FILE, "bundle": names.BUNDLE_FILE}
    wanted = tuple(
        Input(name=found[key], size_bytes=len(data), sha256=hashlib.sha256(data).hexdigest())
        for key, data in files.items()
    )
    return Inputs(replace(make_pod_plan(), inputs=wanted), folder)


def test_a_job_without_inputs_is_ready(folder, secret):
    inputs = make_inputs(folder)
    inputs.find(secret)
    assert inputs.is_ready
    assert not inputs.arrived(names.PAYLOAD_FILE)


def test_files_beside_the_plan_are_used(folder, secret, bundle):
    (secret / names.PAYLOAD_FILE).write_bytes(b"pickled")
    (secret / names.BUNDLE_FILE).write_bytes(bundle)
    inputs = make_inputs(folder, payload=b"pickled", bundle=bundle)
    assert not inputs.is_ready
    inputs.find(secret)
    assert inputs.is_ready
    # a Secret may be large, and its files are already on this machine
    assert folder.payload.is_symlink()
    assert folder.payload.read_bytes() == b"pickled"
    assert read_tree(folder.code) == TREE


def test_files_in_the_folder_are_used_as_they_are(folder):
    folder.payload.write_bytes(b"pickled")
    inputs = make_inputs(folder, payload=b"pickled")
    inputs.find(folder.path)
    assert inputs.is_ready
    assert not folder.payload.is_symlink()


def test_last_input_makes_the_node_ready(folder, secret, bundle):
    inputs = make_inputs(folder, payload=b"pickled", bundle=bundle)
    inputs.find(secret)
    folder.payload.write_bytes(b"pickled")
    assert not inputs.arrived(names.PAYLOAD_FILE)
    folder.bundle.write_bytes(bundle)
    assert inputs.arrived(names.BUNDLE_FILE)
    assert inputs.is_ready
    assert read_tree(folder.code) == TREE
    assert not inputs.arrived(names.BUNDLE_FILE)  # arriving again changes nothing


@pytest.mark.parametrize("data", [b"", b"pickles", b"pickled "])
def test_file_that_differs_from_the_plan_is_refused(folder, secret, data):
    (secret / names.PAYLOAD_FILE).write_bytes(data)
    inputs = make_inputs(folder, payload=b"pickled")
    with pytest.raises(BundleError, match="differs from the one in the plan") as caught:
        inputs.find(secret)
    assert caught.value.hint == "submit the job again"
    assert not inputs.is_ready
    assert not folder.payload.exists()
    assert (secret / names.PAYLOAD_FILE).exists()


def test_refused_file_is_deleted(folder):
    """Otherwise, other nodes would get it, and its size would keep the right one from being sent."""
    inputs = make_inputs(folder, payload=b"pickled")
    folder.payload.write_bytes(b"pickles")
    with pytest.raises(BundleError, match=r"payload\.pkl differs from the one in the plan"):
        inputs.arrived(names.PAYLOAD_FILE)
    assert not folder.payload.exists()
    folder.payload.write_bytes(b"pickled")
    assert inputs.arrived(names.PAYLOAD_FILE)


def test_planned_bundle_that_is_not_an_archive(folder):
    inputs = make_inputs(folder, bundle=b"no archive")
    folder.bundle.write_bytes(b"no archive")
    with pytest.raises(BundleError, match="archive is damaged"):
        inputs.arrived(names.BUNDLE_FILE)
    assert not inputs.is_ready
    assert not folder.bundle.exists()
