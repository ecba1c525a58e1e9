"""A client is killed with SIGKILL after each of its requests. All its objects are listed, and they end."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import killed_client
import pytest
from cluster_space import open_namespace
from waits import wait_for

from windlass import names
from windlass.engines.dialects.dialect import Dialect
from windlass.engines.engine_table import load_dialect
from windlass.errors import EngineMissing
from windlass.kube.client.access import check_needs
from windlass.kube.client.api import Api
from windlass.kube.objects.fields import Object, annotations_of
from windlass.kube.objects.kinds import NETWORK_POLICIES, PODS, SECRETS, SERVICES
from windlass.kube.objects.naming import read_job_id

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(900)]
OPERATORS = ("trainjob", "pytorchjob", "raycluster", "monarchmesh")
ENGINES = [
    "kubernetes",
    *(pytest.param(engine, marks=pytest.mark.thorough) for engine in OPERATORS),
]
# Read at import, because tests run without the WINDLASS_ variables of the caller.
IMAGE = os.environ.get("WINDLASS_TEST_IMAGE", "localhost/torch:2.13.0-cpu")
WORK = "import time\nprint('up', flush=True)\ntime.sleep(3600)\n"
MOST = 30  # requests until a client's job is started, at most
AFTER_START = 3  # jobs whose submit was complete when the client was killed
# A lease of 5 s, 120 s for objects that the cluster itself must end, and its garbage collector.
END_S = 300.0


@pytest.fixture
def api() -> Iterator[Api]:
    with open_namespace("windlass-test") as opened:
        yield opened


@pytest.mark.parametrize("engine", ENGINES)
def test_objects_of_a_killed_client_are_listed_and_end(api: Api, engine: str, tmp_path) -> None:
    dialect = load_dialect(engine)
    try:
        check_needs(api, dialect.needs)
    except EngineMissing as missing:
        pytest.skip(missing.message)
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "windlass.toml").touch()
    (folder / "work.py").write_text(WORK)
    number, num_started = 0, 0
    while num_started < AFTER_START:
        number += 1
        assert number < MOST, "a submission is complete"
        is_up = _run_killed(number, engine, api.namespace, folder)
        num_started = len([body for body in _list_mains(api, dialect) if not _is_marked(body)])
        num_started = AFTER_START if is_up else num_started

    before = {read_job_id(body) for body in _list_mains(api, dialect)}
    assert before, "something was made"
    listed = _list_jobs(engine, api.namespace, folder)
    after = {read_job_id(body) for body in _list_mains(api, dialect)}
    assert before & after <= listed

    def live_pods() -> list[str]:
        return [
            pod["metadata"]["name"]
            for pod in api.list(PODS, labels=names.LABEL_JOB)
            if pod["status"].get("phase") not in ("Succeeded", "Failed")
        ]

    def orphans() -> list[str]:
        mains = {read_job_id(body) for body in _list_mains(api, dialect)}
        own = (dialect.prerequisite.kind,) if dialect.prerequisite else ()
        return [
            f"{kind.name}/{body['metadata']['name']}"
            for kind in (*own, SECRETS, SERVICES, NETWORK_POLICIES)
            for body in api.list(kind, labels=names.LABEL_JOB)
            if read_job_id(body) not in mains
        ]

    wait_for(lambda: not live_pods(), f"{live_pods()} have ended", END_S)
    wait_for(lambda: not orphans(), f"{orphans()} are gone", END_S)


def _list_mains(api: Api, dialect: Dialect) -> list[Object]:
    return api.list(dialect.kind, labels=names.LABEL_JOB)


def _is_marked(body: Object) -> bool:
    return names.ANNOTATION_SUBMIT in annotations_of(body)


def _environ(engine: str, namespace: str, folder: Path) -> dict[str, str]:
    return {
        **os.environ,
        "WINDLASS_ENGINE": engine,
        "WINDLASS_NAMESPACE": namespace,
        "WINDLASS_IMAGE": IMAGE,
        "WINDLASS_HOME": str(folder.parent / "home"),
        "WINDLASS_LEASE_S": "5",
        "WINDLASS_GRACE_S": "1",
        "PYTHONPATH": "",
    }


def _run_killed(number: int, engine: str, namespace: str, folder: Path) -> bool:
    """Run a client that is killed after so many requests. Return whether its ranks had started."""
    command = [sys.executable, killed_client.__file__, str(number), "run", "work.py"]
    with subprocess.Popen(
        [*command, "--nodes", "2", "--framework", "command"],
        cwd=folder,
        env=_environ(engine, namespace, folder),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as client:
        assert client.stdout is not None
        output = []
        try:
            for line in client.stdout:
                output.append(line)
                if "up" in line.split():
                    return True
        finally:
            client.kill()
    assert client.returncode == -9, "".join(output)
    return False


def _list_jobs(engine: str, namespace: str, folder: Path) -> set[str]:
    done = subprocess.run(
        [sys.executable, "-m", "windlass.cli.main", "ls", "--all", "--json"],
        env=_environ(engine, namespace, folder),
        capture_output=True,
        text=True,
        check=True,
    )
    return {record["job_id"] for record in json.loads(done.stdout)}
