"""Agents under every installed Python from 3.10 on, and the error under an older one."""

from __future__ import annotations

import pytest
import rank_work as work
from interpreters import DEBIAN, SUPPORTED, find_pythons, need_python
from severable_agents import open_ground
from waits import wait_for

import windlass as wl
from windlass.wire.status import Phase

NEW = find_pythons()
OLD = {version: path for version, path in find_pythons(6).items() if version not in NEW}


@pytest.mark.parametrize("version", SUPPORTED)
@pytest.mark.parametrize("start", ["fork", "spawn"])
def test_every_new_python(version, start):
    found = wl.run(
        work.environment,
        (["RANK"],),
        nodes=2,
        procs=2,
        python=need_python(version),
        start=start,
        quiet=True,
    )
    assert [env["RANK"] for env in found] == ["0", "1", "2", "3"]
    status = wl.jobs()[0].status()
    if version != DEBIAN:
        assert all(node.python.startswith(f"{version}.") for node in status.nodes)


@pytest.mark.parametrize("version", SUPPORTED)
def test_failures_under_every_new_python(version):
    job = wl.submit(work.fail, ("raise", 1), procs=2, python=need_python(version))
    assert job.wait(30).verdict.rank == 1
    assert isinstance(job.exception(), ValueError)


def finish(ground):
    """End the job, and check that every agent exited with 0."""
    (ground.notes / "done").touch()
    lead = ground.agents["0"]
    wait_for(lambda: (s := lead.status()) and s.phase.is_final, "the job has ended", 60)
    assert lead.status().phase is Phase.SUCCEEDED
    codes = {name: agent.process.wait(60) for name, agent in ground.agents.items()}
    assert codes == dict.fromkeys(ground.agents, 0)
    assert "Traceback" not in "".join(map(ground.log, ground.agents))


@pytest.mark.long
@pytest.mark.parametrize("version", SUPPORTED)
def test_agents_of_pods_exit_cleanly_under_every_python(tmp_path, version):
    with open_ground(tmp_path, python=need_python(version), nodes=3, min_nodes=3) as ground:
        ground.start_all()
        finish(ground)


@pytest.mark.long
@pytest.mark.parametrize("version", SUPPORTED)
def test_agents_of_pods_survive_a_broken_link_under_every_python(tmp_path, version):
    asked = {"nodes": 2, "min_nodes": 2, "grace_s": 1.0}
    with open_ground(tmp_path, python=need_python(version), **asked) as ground:
        ground.start_all()
        ground.relays[1].reset()
        ground.wait_for_ranks(1, 2, 60)
        finish(ground)


@pytest.mark.skipif(not OLD, reason="no Python older than 3.10 here")
@pytest.mark.parametrize("version", OLD)
def test_old_python_is_reported(version):
    job = wl.submit(work.rank, python=OLD[version])
    verdict = job.wait(30).verdict
    assert verdict.kind.value == "start failed"
    assert f"the nodes run Python {version}, 3.10 or newer is needed" in verdict.message
    with pytest.raises(wl.EngineError, match="--python"):
        job.results()


def test_a_missing_interpreter_is_refused(home):
    with pytest.raises(wl.SpecError, match="Python interpreter 'no-such-python' not found"):
        wl.run(work.rank, python="no-such-python")
    assert not (home / "jobs").exists()
