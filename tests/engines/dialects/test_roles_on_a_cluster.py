"""The Role printed for an operator's engine is sufficient for a user who has no other rights."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from cluster_space import Space
from kube.users import make_kubeconfig
from operator_jobs import skip_where_missing
from waits import wait_for

import windlass as wl
from windlass.engines.dialects.dialect import Dialect
from windlass.engines.dialects.monarchmesh import MONARCHMESH
from windlass.engines.dialects.pytorchjob import PYTORCHJOB
from windlass.engines.dialects.raycluster import RAYCLUSTER
from windlass.engines.dialects.trainjob import RUNTIME, SHIPPED, TRAINJOB
from windlass.kube.client.access import check_access, render_role
from windlass.kube.client.api import connect
from windlass.kube.client.api_errors import Forbidden
from windlass.kube.objects.kinds import TRAINING_RUNTIMES
from windlass.wire.status import Phase

pytestmark = pytest.mark.cluster


@pytest.fixture(
    params=[TRAINJOB, PYTORCHJOB, MONARCHMESH, RAYCLUSTER], ids=lambda dialect: dialect.name
)
def dialect(
    request: pytest.FixtureRequest, space: Space, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Dialect:
    """Return the dialect of an engine, used from now on by a user who has only its Role."""
    chosen: Dialect = request.param
    skip_where_missing(chosen, space)
    rules = yaml.safe_load(render_role({chosen.name: chosen.rights}))["rules"]
    (tmp_path / "project").mkdir()
    # without the kubeconfig, which must not be packed with the project
    monkeypatch.chdir(tmp_path / "project")
    for name, value in {
        **space.settings,
        "WINDLASS_ENGINE": chosen.name,
        "KUBECONFIG": str(make_kubeconfig(space.api, rules, tmp_path)),
    }.items():
        monkeypatch.setenv(name, value)
    return chosen


@pytest.fixture
def own_runtime(space: Space, dialect: Dialect) -> Iterator[dict[str, Any]]:
    """Yield settings with which a job does not need the cluster's runtimes."""
    if dialect.prerequisite is None:
        yield {}
        return
    source = json.loads(json.dumps(SHIPPED[RUNTIME]))
    (step,) = source["spec"]["template"]["spec"]["replicatedJobs"]
    step["template"]["spec"]["template"]["spec"]["containers"] = [{"name": "node", "image": "x"}]
    space.api.create(TRAINING_RUNTIMES, {**source, "metadata": {"name": "role-ours"}})
    yield {"runtime": "role-ours"}
    space.api.delete(TRAINING_RUNTIMES, "role-ours")


def test_whole_life_of_a_job(dialect, space, own_runtime):
    user = connect(namespace=space.namespace, engine=dialect.name)
    # the API server's caches do not know a new Role immediately
    wait_for(lambda: check_access(user, rights=dialect.rights) == [], "the user has the rights", 30)
    job = wl.submit(["sh", "-c", "echo here"], **own_runtime)
    assert job.wait(120).phase is Phase.SUCCEEDED
    assert [line.text for line in job.logs()] == ["here"]
    job.remove()
    assert wl.jobs() == []


@pytest.mark.parametrize("dialect", [TRAINJOB], indirect=True)
def test_runtimes_of_the_cluster_need_more_rights(dialect, space):
    with pytest.raises(Forbidden, match="you may not get clustertrainingruntimes") as caught:
        wl.submit(["true"])
    assert f"of namespace {space.namespace} with --runtime" in caught.value.hint
    assert "`windlass doctor -e trainjob` prints it" in caught.value.hint
    assert wl.jobs() == []
