"""Lifecycle of a compute: reuse, change in place, replacement, teardown and inactivity timeout."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest
import warm_tasks as tasks
from waits import wait_for
from warm_computes import PROJECT

import windlass as kt

WAIT_S = 120.0


@pytest.mark.parametrize(
    ("wrong", "right"),
    [
        ("gpu", "gpus"),
        ("mem", "memory"),
        ("priority", "priority_class"),
        ("inactivity", "inactivity_ttl"),
        ("name_space", "namespace"),
        ("node_selectors", "node_selector"),
    ],
)
def test_wrong_keyword_suggests_the_nearest(wrong, right):
    with pytest.raises(kt.SpecError, match=f"no keyword '{wrong}'") as caught:
        kt.Compute(**{wrong: 1})
    assert f"'{right}'" in caught.value.hint


def test_misspelled_framework_suggests_the_nearest():
    with pytest.raises(kt.SpecError, match="'pytorhc'") as caught:
        kt.Compute().distribute("pytorhc")
    assert "'pytorch'" in caught.value.hint


def test_compute_is_reused_from_another_process(on, make, start_client):
    compute = make()
    agent = kt.fn(tasks.find_agent).to(compute)()
    client = start_client(compute, "import json; print(json.dumps(remote(tasks.find_agent)()))")
    assert tuple(json.loads(client.finish())) == agent
    assert kt.fn(tasks.find_agent).to(compute)() == agent


def test_variables_change_in_place(on, make, capfd):
    compute = make(env={"COLOR": "red", "KEPT": 1})
    agent = kt.fn(tasks.find_agent).to(compute)()
    read = kt.fn(tasks.environment)
    assert read.to(compute)("COLOR", "KEPT") == {"COLOR": "red", "KEPT": "1"}
    again = make(name=compute.name, env={"COLOR": "blue", "KEPT": 1})
    assert read.to(again)("COLOR", "KEPT") == {"COLOR": "blue", "KEPT": "1"}
    assert "replaced" not in capfd.readouterr().err
    back = make(name=compute.name, env={"COLOR": "red"})
    assert read.to(back)("COLOR") == {"COLOR": "red"}
    assert kt.fn(tasks.find_agent).to(back)() == agent


@pytest.mark.long
def test_removed_variable_is_unset(on, make):
    compute = make(env={"COLOR": "red"})
    read = kt.fn(tasks.environment)
    assert read.to(compute)("COLOR") == {"COLOR": "red"}
    agent = kt.fn(tasks.find_agent).to(compute)()
    again = make(name=compute.name)
    assert read.to(again)("COLOR") == {"COLOR": None}
    assert kt.fn(tasks.find_agent).to(again)() == agent


@pytest.mark.long
def test_inactivity_ttl_changes_in_place(on, make):
    compute = make()
    agent = kt.fn(tasks.find_agent).to(compute)()
    again = make(name=compute.name, inactivity_ttl="33m")
    assert kt.fn(tasks.find_agent).to(again)() == agent
    assert on.info(again)["ttl_s"] == 33 * 60


def test_compute_grows_and_node_0_stays(on, make):
    compute = make()
    agent = kt.fn(tasks.find_agent).to(compute)()
    again = make(name=compute.name)
    found = kt.fn(tasks.find_agent).to(again).distribute("spmd", workers=3)()
    assert found[0] == agent
    assert len(set(found)) == 3
    assert kt.fn(tasks.find_agent).to(compute).distribute("spmd", workers=2)() == found[:2]


@pytest.mark.cluster_only("on one machine nodes have no memory of their own")
def test_nodes_are_replaced_when_they_cannot_change_in_place(on, make, capfd):
    compute = make(memory="300Mi")
    agent = kt.fn(tasks.find_agent).to(compute)()
    capfd.readouterr()
    again = make(name=compute.name, memory="310Mi")
    assert kt.fn(tasks.find_agent).to(again)() != agent
    err = capfd.readouterr().err
    assert "replacing its nodes, because some settings cannot change in place (memory" in err
    assert err.index("replacing its nodes") < err.index("starting 1 node")
    # the first handle may not use its old nodes
    assert len(on.pod_uids(again)) == 1


@pytest.mark.long
@pytest.mark.local_only("in pods an image has its own Python")
def test_another_python_replaces_the_nodes(on, make, capfd, tmp_path):
    from wheels import make_python

    compute = make()
    agent = kt.fn(tasks.find_agent).to(compute)()
    again = make(name=compute.name, python=make_python(tmp_path / "venv"))
    capfd.readouterr()
    assert kt.fn(tasks.find_agent).to(again)() != agent
    err = capfd.readouterr().err
    assert "replacing its nodes, because some settings cannot change in place (python: /" in err
    assert "none" not in err


@pytest.mark.long
@pytest.mark.local_only("in pods an image has its own Python")
def test_same_python_under_another_name_keeps_the_nodes(make, tmp_path):
    """A script's first line and a user who types `python` spell the same interpreter differently."""
    from wheels import make_python

    first = Path(make_python(tmp_path / "venv"))
    compute = make()
    code = (
        "import warm_tasks as tasks, windlass as kt, sys\n"
        f"compute = kt.Compute(name={compute.name!r}, inactivity_ttl=240)\n"
        "print(kt.fn(tasks.find_agent).to(compute)()[1:])\n"
    )
    env = {**os.environ, "PYTHONPATH": str(PROJECT)}
    runs = [
        subprocess.run(
            [first.with_name(name), "-c", code],
            cwd=PROJECT,
            env=env,
            capture_output=True,
            text=True,
            check=True,
        )
        for name in ("python", "python3", "python")
    ]
    assert len({one.stdout for one in runs}) == 1
    assert not [one.stderr for one in runs if "replaced" in one.stderr]


@pytest.mark.long
def test_nodes_with_unfinished_calls_are_not_replaced(on, make, shared, tmp_path):
    from wheels import make_python

    compute = make()
    job = kt.fn(tasks.block).to(compute).submit(f"{shared.path}/started", f"{shared.path}/go")
    shared.wait_for("started")
    other = {"memory": "310Mi"} if on.space else {"python": make_python(tmp_path / "venv")}
    again = make(name=compute.name, **other)
    with pytest.raises(kt.SpecError, match="has unfinished calls"):
        kt.fn(tasks.echo).to(again)
    shared.touch("go")
    assert job.results(timeout_s=WAIT_S)


def test_call_after_teardown_starts_new_nodes(on, make):
    compute = make()
    remote = kt.fn(tasks.find_agent).to(compute)
    agent = remote()
    job = on.job(compute)
    compute.teardown()
    assert job.status().phase.is_final
    assert remote() != agent


def test_teardown_by_name_from_another_process(on, make, start_client):
    compute = make()
    kt.fn(tasks.echo).to(compute)()
    job = on.job(compute)
    start_client(compute, "compute.teardown()").finish()
    assert job.status().phase.is_final


@pytest.mark.long
def test_inactive_compute_ends_and_the_next_call_restarts_it(on, make, capfd):
    compute = make(inactivity_ttl=on.short_ttl_s)
    remote = kt.fn(tasks.find_agent).to(compute)
    agent = remote()
    job = on.job(compute)
    wait_for(lambda: job.status().phase.is_final, "it has ended by itself", WAIT_S)
    status = job.status()
    assert status.verdict is not None
    assert "inactivity_ttl" in status.verdict.message
    assert remote() != agent
    assert "its nodes are gone, starting new ones" in capfd.readouterr().err


@pytest.mark.long
def test_a_long_call_is_not_inactivity(on, make, shared):
    compute = make(inactivity_ttl=on.short_ttl_s)
    length_s = on.short_ttl_s + 1.5
    word, begun, ended = kt.fn(tasks.take_time).to(compute)("long", length_s)
    assert ended - begun >= length_s
    assert word == "long"


def test_missing_root_is_refused_before_anything_starts(on):
    with pytest.raises(kt.SpecError, match="root="):
        kt.fn(tasks.echo).to(on.make(root="/no/such/folder"))()


@pytest.mark.parametrize(
    "wrong",
    [
        {"memory": 512},
        {"inactivity_ttl": 0},
        {"inactivity_ttl": "soon"},
        {"launch_timeout": -1},
        {"volumes": [3]},
        {"image": 3},
        {"gpus": -1},
    ],
    ids=str,
)
def test_wrong_values_are_refused_with_a_hint(on, wrong):
    with pytest.raises(kt.SpecError) as caught:
        kt.Compute(name="t-wrong", **wrong).up()
    assert caught.value.hint
