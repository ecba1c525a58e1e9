"""Files of a job that are split over several Secrets, and joined again before the agent starts."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from kube.plans import make_pod_plan

from windlass import names
from windlass.engines.cluster.job_secret import make_files
from windlass.kube.objects.manifests import (
    JOIN,
    MAX_SECRET_BYTES,
    cut_files,
    make_part,
    make_secret,
)

MAX_ANNOTATIONS = 262_144  # limit of the API server for all annotations of an object


def test_files_fill_as_few_secrets_as_possible():
    parts = cut_files({"a": b"12345", "b": b"", "c": b"678"}, 4)
    assert parts == ({"a.0": b"1234"}, {"a.1": b"5", "b.0": b"", "c.0": b"678"})


@pytest.mark.parametrize("most_bytes", [1, 7, 1000])
def test_a_pod_joins_the_pieces_and_starts_the_agent(tmp_path, most_bytes):
    agent = f"import sys; print({__file__!r}, sys.argv[1:], sys.flags.isolated, sys.flags.no_site)"
    files = {names.AGENT_FILE: agent.encode(), "bundle.tar.gz": bytes(range(25)), "empty": b""}
    source, target = tmp_path / "parts", tmp_path / "job" / "files"
    source.mkdir()
    (tmp_path / "job").mkdir()
    (source / "..data").mkdir()  # the layout that the kubelet creates
    for part in cut_files(files, most_bytes):
        for name, piece in part.items():
            (source / name).write_bytes(piece)
    command = [sys.executable, "-I", "-S", "-c", JOIN, str(source), str(target)]
    for _ in range(2):  # a restarted container finds the files of the last one
        done = subprocess.run(command, capture_output=True, text=True)
        assert done.stdout == f"{__file__} ['pod'] 1 1\n", done.stderr
        assert {path.name: path.read_bytes() for path in target.iterdir()} == files


def test_every_secret_of_an_export_can_be_applied_by_the_client(tmp_path):
    bundle = tmp_path / "bundle.tar.gz"
    bundle.write_bytes(bytes(700_000))
    plan = make_pod_plan(env={names.TRAIN: "x"}, namespace="some-namespace")
    files = make_files(plan, bytes(10_000), bundle, is_export=True)
    assert {name.rpartition(".")[0] for part in files.parts for name in part} == {
        names.AGENT_FILE,
        names.TRAIN_FILE,
        names.PAYLOAD_FILE,
        names.BUNDLE_FILE,
    }
    secrets = [make_part(plan, at, part) for at, part in enumerate(files.parts)]
    for secret in (make_secret(plan, files.own), *secrets):
        assert len(json.dumps(secret)) < MAX_ANNOTATIONS - 10_000


def test_the_secrets_of_a_submit_are_few_and_fit(tmp_path):
    bundle = tmp_path / "bundle.tar.gz"
    bundle.write_bytes(bytes(10))
    files = make_files(make_pod_plan(env={names.TRAIN: "x"}), b"payload", bundle)
    sizes = [sum(map(len, part.values())) for part in files.parts]
    assert all(size == MAX_SECRET_BYTES for size in sizes[:-1])
    assert sizes[-1] <= MAX_SECRET_BYTES
    assert files.holds(names.BUNDLE_FILE)
    assert files.holds(names.PAYLOAD_FILE)
    bundle.write_bytes(bytes(1_000_000))
    assert not make_files(make_pod_plan(), None, bundle).holds(names.BUNDLE_FILE)
