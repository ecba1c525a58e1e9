"""Node specs from keywords: defaults, refusals, and changes that need new nodes."""

from __future__ import annotations

import os
import sys

import pytest

from windlass.client.compute.nodes.compute_spec import decide, describe_change, read_ttl
from windlass.client.compute.resources.image import images
from windlass.errors import SpecError
from windlass.spec.work import RunStep


@pytest.fixture(autouse=True)
def no_cluster(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "none"))


def test_default_without_a_cluster_is_this_machine():
    wanted = decide({})
    assert wanted.where.engine == "local"
    assert (wanted.pod, wanted.procs, wanted.ttl_s) == (None, 1, None)


def test_one_rank_per_gpu():
    assert decide({"gpus": 8}).procs == 8


def test_an_image_brings_steps_and_variables():
    image = images.pytorch("24.08-py3").run("true").env(A=1, B=2)
    wanted = decide({"image": image, "env": {"B": 3}})
    assert wanted.steps == (RunStep(command="true"),)
    assert dict(wanted.env) == {"A": "1", "B": "3"}


def test_changes_in_place_need_no_new_nodes():
    one = decide({"env": {"A": "1"}, "inactivity_ttl": 5, "image": images.python("3.12")})
    other = decide({"env": {}, "inactivity_ttl": "9m", "image": images.python("3.12").run("true")})
    assert one.digest == other.digest


def make_interpreters(folder):
    """Create interpreters as virtual environments have them, with links to one file or to each other."""
    folder.mkdir(parents=True)
    (folder / "python").symlink_to(os.path.realpath(sys.executable))
    for name in ("python3", "python3.99"):
        (folder / name).symlink_to("python")
    return [str(folder / name) for name in ("python", "python3", "python3.99")]


def test_other_name_of_the_same_interpreter_needs_no_new_nodes(monkeypatch, tmp_path):
    """The name may come from the running interpreter or from a setting."""
    paths = make_interpreters(tmp_path / "venv" / "bin")
    (tmp_path / "link").symlink_to("venv")
    paths.append(str(tmp_path / "link" / "bin" / "python"))
    digests = {decide({"python": path}).digest for path in paths}
    for path in paths:
        monkeypatch.setattr("sys.executable", path)
        digests.add(decide({}).digest)
    monkeypatch.setenv("PATH", str(tmp_path / "venv" / "bin"))
    digests.add(decide({"python": "python3"}).digest)
    assert len(digests) == 1


def test_interpreter_of_another_environment_needs_new_nodes(monkeypatch, tmp_path):
    """Both may be links to one file, but their packages differ."""
    one, other = (make_interpreters(tmp_path / name / "bin")[0] for name in ("one", "other"))
    monkeypatch.setattr("sys.executable", one)
    there = decide({}).make_plan("nodes", 1, ()).work
    monkeypatch.setattr("sys.executable", other)
    wanted = decide({})
    assert there.fixed != wanted.digest
    text = describe_change(there.about, wanted.fixed)
    assert text.startswith("python: /")
    assert ["/one/bin/" in text, "/other/bin/" in text.partition(" -> ")[2]] == [True, True]
    assert ";" not in text


def test_a_change_is_described():
    text = describe_change(
        {"memory": "1Gi", "image": "a", "gpus": 0}, {"memory": "2Gi", "image": "a"}
    )
    assert "memory: 1Gi -> 2Gi" in text
    assert "image" not in text


@pytest.mark.parametrize(
    ("given", "found"), [(None, None), ("none", None), (90, 90.0), ("30m", 1800.0), ("1h", 3600.0)]
)
def test_times(given, found):
    assert read_ttl(given) == found


@pytest.mark.parametrize("wrong", [0, -1, "soon"])
def test_wrong_times(wrong):
    with pytest.raises(SpecError, match="inactivity_ttl"):
        read_ttl(wrong)


@pytest.mark.parametrize("wrong", [{"memory": 512}, {"shm": 64}, {"volumes": [3]}, {"image": 3}])
def test_wrong_values(wrong):
    with pytest.raises(SpecError) as caught:
        decide(wrong)
    assert caught.value.hint


def test_secrets_are_in_no_repr(monkeypatch):
    from windlass.client.compute.resources.secret import Secret

    monkeypatch.setenv("API_KEY", "swordfish")
    wanted = decide({"secrets": [Secret.from_env(["API_KEY"])]})
    assert wanted.hidden == {"API_KEY": "swordfish"}
    assert "swordfish" not in repr(wanted)


def test_variables_that_are_added_changed_and_removed():
    before = decide({"env": {"A": "1", "B": "1", "C": "1"}}).make_plan("t", 1, ()).env
    wanted = decide({"env": {"A": "1", "B": "2", "D": "1"}})
    assert wanted.compare_env(before) == {"B": "2", "C": None, "D": "1"}
    assert wanted.compare_env(wanted.make_plan("t", 1, ()).env) == {}
