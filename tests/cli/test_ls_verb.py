"""`windlass ls`, which answers in seconds. A job that does not answer is named and delays no other."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from cli.process import Ran
from kube.api_server import Answer, serve, write_kubeconfig


@pytest.mark.long
def test_silent_cluster_delays_no_other_job(
    windlass: Callable[..., Ran], home: Path, tmp_path: Path
) -> None:
    here = windlass("run", "--quiet", "--json", "--", "true").json["job_id"]
    folder = home / "kubernetes" / "pods-abcde"
    folder.mkdir(parents=True)
    (folder / "where.json").write_text('{"context": "", "namespace": "space"}')
    held = threading.Event()
    with serve(Answer(lines=(), hold=held)) as server:
        config = write_kubeconfig(tmp_path, server=server.url)
        try:
            ran = windlass("ls", env={"KUBECONFIG": str(config)})
        finally:
            held.set()
    assert ran.code == 0
    assert here in ran.out
    assert "pods-abcde is unknown: it did not answer within 8 s" in ran.err
    (row,) = [line for line in ran.out.splitlines() if "pods-abcde" in line]
    assert row.split()[2] == "unknown", "it is listed nevertheless"
