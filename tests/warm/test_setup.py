"""Setup of nodes before ranks start: image steps, variables, secrets and volumes."""

from __future__ import annotations

import json
import secrets
from pathlib import Path

import pytest
import warm_tasks as tasks
from waits import wait_for
from wheels import make_wheel

import windlass as kt
from windlass import records

pytestmark = pytest.mark.long


def image(on, command=""):
    """Return an image, with a step that runs `command` if one is given."""
    found = kt.Image(on.space.image if on.space else "")
    return found.run(command) if command else found


def count(shared, name):
    return len(shared.read(name).splitlines()) if shared.exists(name) else 0


def test_steps_run_once_per_node_and_again_when_changed(on, make, shared):
    command = f"python3 -c \"open('{shared.path}/NAME', 'a').write('x' + chr(10))\""
    first = make(image=image(on, command.replace("NAME", "first")))
    remote = kt.fn(tasks.find_agent).to(first).distribute("spmd", workers=2)
    agents = remote()
    assert remote() == agents
    # local nodes share one environment, so a step runs once for all
    times = 2 if on.space else 1
    assert count(shared, "first") == times
    second = make(name=first.name, image=image(on, command.replace("NAME", "second")))
    again = kt.fn(tasks.find_agent).to(second).distribute("spmd", workers=2)
    assert again() == agents
    assert again() == agents
    assert (count(shared, "first"), count(shared, "second")) == (times, times)


def test_failed_step_fails_the_call_and_is_retried(on, make, shared):
    command = f"python3 -c \"import os, sys; sys.exit(not os.path.exists('{shared.path}/ready'))\""
    remote = kt.fn(tasks.echo).to(make(image=image(on, command)))
    with pytest.raises(kt.StepFailed) as caught:
        remote()
    assert f"{command}: exit code 1" in caught.value.message
    assert caught.value.hint == "run it manually in the image for details"
    job = remote.submit()
    with pytest.raises(kt.StepFailed):
        job.result()
    shared.touch("ready")
    assert remote(1) == ((1,), {})


def test_a_wheel_of_the_project_is_installed_and_changes(on, make, project):
    stem = project.stem
    project.write("{stem}.py", "def value():\n    import {stem}_pkg\n    return {stem}_pkg.VALUE\n")
    wheel = make_wheel(project.folder / "wheels", f"{stem}_pkg", "1.0", value=1)
    function = project.load("{stem}").value
    compute = make(image=image(on).pip_install([f"./wheels/{wheel.name}"]))
    assert kt.fn(function).to(compute)() == 1
    newer = make_wheel(project.folder / "wheels", f"{stem}_pkg", "2.0", value=2)
    again = make(name=compute.name, image=image(on).pip_install([f"./wheels/{newer.name}"]))
    assert kt.fn(function).to(again).distribute("spmd", workers=2)() == [2, 2]


def test_variables_of_the_image_reach_ranks(on, make):
    compute = make(image=image(on).env(COLOR="red", SIZE=3), env={"SIZE": "4"})
    read = kt.fn(tasks.environment).to(compute)
    assert read("COLOR", "SIZE") == {"COLOR": "red", "SIZE": "4"}


def test_torch_works_after_a_setup_change(on, make):
    """The store prepared for the next call was lost with the fork server."""
    compute = make()
    assert kt.fn(tasks.all_reduce).to(compute).distribute("pytorch", workers=2)(1) == [3, 3]
    again = make(name=compute.name, env={"COLOR": "red"})
    remote = kt.fn(tasks.all_reduce).to(again).distribute("pytorch", workers=2)
    assert remote(1) == [3, 3]
    assert remote(2) == [5, 5]


def test_variables_of_the_image_reach_steps(on, make, shared):
    word = "open(os.environ['WHERE'] + '/word', 'w').write(os.environ['COLOR'])"
    found = image(on, f'python3 -c "import os; {word}"').env(COLOR="red", WHERE=shared.path)
    kt.fn(tasks.echo).to(make(image=found))()
    assert shared.read("word") == "red"


# -- secrets -------------------------------------------------------------------------------------


def test_secrets_of_the_environment_reach_only_ranks(on, make, home, monkeypatch):
    word = secrets.token_hex(16)
    monkeypatch.setenv("API_KEY", word)
    given = kt.Secret.from_env(["API_KEY"])
    compute = make(secrets=[given])
    remote = kt.fn(tasks.environment).to(compute).distribute("spmd", workers=2)
    assert remote("API_KEY") == [{"API_KEY": word}] * 2
    nodes = compute.nodes()
    plan = json.dumps(records.to_json(nodes.wanted.engine.plan(nodes.ref)))
    shown = f"{given!r}{compute!r}{nodes.wanted!r}{plan}{on.info(compute)}"
    assert word not in shown
    for path in Path(home).rglob("*"):
        if path.is_file():
            assert word.encode() not in path.read_bytes(), path


def test_setup_started_by_a_cancelled_call_is_used_by_the_next(on, make, shared):
    """The steps continue. Ranks forked after them must not be mistaken for older ones."""
    wait = f"while [ ! -e {shared.path}/go ]; do sleep 0.05; done"
    compute = make(image=image(on, f"touch {shared.path}/begun; {wait}"))
    remote = kt.fn(tasks.echo).to(compute)
    first = remote.submit(1)
    shared.wait_for("begun")
    first.cancel()
    second = remote.submit(2)
    wait_for(lambda: len(on.info(compute)["calls"]) == 2, "the second call is known")
    shared.touch("go")
    assert second.result(timeout_s=100) == ((2,), {})
    assert remote(3) == ((3,), {})


def test_secrets_stay_when_the_setup_changes(on, make, monkeypatch):
    monkeypatch.setenv("API_KEY", "word")
    given = [kt.Secret.from_env(["API_KEY"])]
    compute = make(secrets=given)
    assert kt.fn(tasks.environment).to(compute)("API_KEY") == {"API_KEY": "word"}
    again = make(name=compute.name, secrets=given, env={"COLOR": "red"})
    read = kt.fn(tasks.environment).to(again)
    assert read("API_KEY", "COLOR") == {"API_KEY": "word", "COLOR": "red"}


def test_changed_secret_reaches_only_live_nodes(on, make, home, monkeypatch):
    old, new = secrets.token_hex(16), secrets.token_hex(16)
    monkeypatch.setenv("API_KEY", old)
    compute = make(secrets=[kt.Secret.from_env(["API_KEY"])])
    read = kt.fn(tasks.environment).to(compute).distribute("spmd", workers=2)
    assert read("API_KEY") == [{"API_KEY": old}] * 2
    ref = compute.nodes().ref
    monkeypatch.setenv("API_KEY", new)
    again = make(name=compute.name, secrets=[kt.Secret.from_env(["API_KEY"])])
    read = kt.fn(tasks.environment).to(again).distribute("spmd", workers=2)
    assert read("API_KEY") == [{"API_KEY": new}] * 2
    assert again.nodes().ref == ref
    assert new not in str(on.info(again))
    for path in Path(home).rglob("*"):
        assert not path.is_file() or new.encode() not in path.read_bytes(), path


def test_a_secret_that_is_not_set_is_refused_before_anything_starts(on, monkeypatch):
    monkeypatch.delenv("NO_SUCH_KEY", raising=False)
    compute = on.make(secrets=[kt.Secret.from_env(["NO_SUCH_KEY"])])
    with pytest.raises(kt.SpecError, match="NO_SUCH_KEY"):
        kt.fn(tasks.echo).to(compute)
    compute.name = ""  # no compute was started, so none has to be torn down


@pytest.mark.cluster_only("there are no Secrets of the cluster on one machine")
def test_a_secret_of_the_cluster(on, make):
    from windlass.kube.objects.kinds import SECRETS

    name = f"db-{secrets.token_hex(3)}"
    made = {"metadata": {"name": name}, "stringData": {"PASSWORD": "swordfish"}}
    on.space.api.create(SECRETS, made)
    remote = kt.fn(tasks.environment).to(make(secrets=[kt.Secret(name=name)]))
    assert remote("PASSWORD") == {"PASSWORD": "swordfish"}


# -- volumes -------------------------------------------------------------------------------------

KEEP = """
from pathlib import Path
from windlass.distributed import volume_path

def write(volume, word):
    Path(volume_path(volume), "word").write_text(word)

def read(volume):
    return Path(volume_path(volume), "word").read_text()
"""


def test_a_volume_outlives_the_compute_and_is_shared_by_its_nodes(on, make, project):
    project.write("{stem}.py", KEEP)
    module = project.load("{stem}")
    name = f"data-{secrets.token_hex(3)}"
    vol = kt.Volume(name=name, size="1Gi", mount_path="/volume-data", access_mode="ReadWriteMany")
    first = make(volumes=[vol])
    kt.fn(module.write).to(first)(name, "kept")
    first.teardown()
    second = make(volumes=[vol]).distribute(framework="spmd", workers=2)
    assert kt.fn(module.read).to(second)(name) == ["kept", "kept"]


@pytest.mark.cluster_only("on one machine any number of nodes can use a folder")
def test_a_volume_for_one_node_is_refused_for_two(on, make):
    name = f"data-{secrets.token_hex(3)}"
    vol = kt.Volume(name=name, size="1Gi", mount_path="/data", access_mode="ReadWriteOnce")
    with pytest.raises(kt.SpecError, match="ReadWriteOnce"):
        kt.fn(tasks.echo).to(make(volumes=[vol]).distribute("spmd", workers=2))
