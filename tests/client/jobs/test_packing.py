"""Contents of a bundle: the project as an archive, and paths as nodes see them."""

from __future__ import annotations

import hashlib
import importlib
import os
import sys
import types
from dataclasses import replace
from pathlib import Path

import pytest
from bundle.trees import read_tree, touch

from windlass import names
from windlass.bundle.archive import extract
from windlass.client.jobs.packing import check_modules, pack_code
from windlass.client.jobs.target import read_in_image, read_work_target
from windlass.errors import BundleError, SpecError
from windlass.spec.job_spec import JobSpec
from windlass.spec.pod_spec import PodSpec
from windlass.spec.work import Command, Function, Module, Script

THERE = "/windlass/job/code"
MINOR = f"{sys.version_info[0]}.{sys.version_info[1]}"


@pytest.fixture
def project(tmp_path):
    """Create a project with a folder of sources."""
    root = tmp_path / "project"
    touch(root, "pyproject.toml", "train.py", "src/lib/__init__.py", "src/lib/steps.py")
    (root / "src" / "lib" / "steps.py").write_text("def step():\n    return 1\n")
    return root


@pytest.fixture
def imports(monkeypatch):
    """Return a function that imports a module from a folder for this test only."""
    before = set(sys.modules)

    def load(folder, name):
        monkeypatch.syspath_prepend(str(folder))
        return importlib.import_module(name)

    yield load
    for new in set(sys.modules) - before:
        del sys.modules[new]


def pack_target(found, cwd, tmp_path, *, paths=(), in_image=False):
    spec = JobSpec(
        work=found.work,
        engine="kubernetes",
        cwd=str(cwd),
        paths=tuple(map(str, paths)),
        pod=PodSpec(image="any", in_image=in_image),
    )
    return pack_code(spec, found, cwd=cwd, code_folder=THERE, home=tmp_path / "windlass")


def unpack(packed, where):
    with packed.bundle.open("rb") as archive:
        extract(archive, where)
    return set(read_tree(where))


@pytest.mark.parametrize(
    ("cwd", "script", "there", "path"),
    [
        (".", "train.py", THERE, "train.py"),
        ("src", "../train.py", f"{THERE}/src", "../train.py"),
        (".", "src/lib/steps.py", THERE, "src/lib/steps.py"),
        ("..", "project/train.py", THERE, "train.py"),
    ],
)
def test_script_is_where_ranks_look_for_it(project, tmp_path, cwd, script, there, path):
    here = (project / cwd).resolve()
    found = read_work_target(script, ["--lr", "1"], cwd=here)
    packed = pack_target(found, here, tmp_path)
    assert packed.spec.work == Script(path=path, args=("--lr", "1"))
    assert packed.spec.cwd == there
    moved = tmp_path / "node"
    unpack(packed, moved)
    rank_folder = moved / os.path.relpath(there, THERE)
    assert (rank_folder / path).read_bytes() == (here / script).read_bytes()


def test_script_given_by_absolute_path(project, tmp_path):
    found = read_work_target(str(project / "train.py"), cwd=project)
    assert pack_target(found, project, tmp_path).spec.work == Script(path="train.py")


def test_a_function_of_a_file(project, tmp_path):
    found = read_work_target("src/lib/steps.py::step", cwd=project)
    packed = pack_target(found, project, tmp_path)
    assert packed.spec.work == Function(name="step", file="src/lib/steps.py")
    assert [wanted.name for wanted in packed.inputs] == [names.PAYLOAD_FILE, names.BUNDLE_FILE]
    assert packed.python_minor == ""  # the bundle has its code


@pytest.mark.parametrize("target", ["-m lib.steps", ["echo", "hi"]])
def test_modules_and_commands_are_unchanged(project, tmp_path, target):
    found = read_work_target(target, cwd=project)
    packed = pack_target(found, project, tmp_path)
    assert packed.spec.work == found.work
    assert isinstance(found.work, (Module, Command))
    assert [wanted.name for wanted in packed.inputs] == [names.BUNDLE_FILE]


def test_import_paths_of_the_project_are_those_of_the_nodes(project, tmp_path):
    found = read_work_target("train.py", cwd=project)
    paths = [project, project / "src", tmp_path / "elsewhere"]
    packed = pack_target(found, project, tmp_path, paths=paths)
    assert packed.spec.paths == (THERE, f"{THERE}/src")  # a missing folder is omitted from the path


def test_whole_project_is_sent_and_named_by_its_hash(project, tmp_path):
    touch(project, ".git/config", "__pycache__/train.pyc", "data/deep/table.csv")
    packed = pack_target(read_work_target("train.py", cwd=project), project, tmp_path)
    assert unpack(packed, tmp_path / "node") == {
        "pyproject.toml",
        "train.py",
        "src/lib/__init__.py",
        "src/lib/steps.py",
        "data/deep/table.csv",
    }
    [wanted] = packed.inputs
    data = packed.bundle.read_bytes()
    assert (wanted.name, wanted.size_bytes) == (names.BUNDLE_FILE, len(data))
    assert wanted.sha256 == hashlib.sha256(data).hexdigest()


# -- functions -----------------------------------------------------------------------------------


def test_function_by_name_needs_no_specific_python(project, tmp_path, imports):
    steps = imports(project / "src", "lib.steps")
    found = read_work_target(steps.step, cwd=project)
    packed = pack_target(found, project, tmp_path, paths=[project / "src"])
    assert packed.spec.work == Function(name="step")
    assert (packed.spec.paths, packed.python_minor) == ((f"{THERE}/src",), "")
    assert "src/lib/steps.py" in unpack(packed, tmp_path / "node")


def test_a_function_by_value_needs_this_python(project, tmp_path):
    found = read_work_target(lambda: 1, cwd=project)
    packed = pack_target(replace(found, source=None), project, tmp_path)
    assert packed.python_minor == MINOR
    assert packed.inputs[0].sha256 == hashlib.sha256(found.payload).hexdigest()


def test_a_module_outside_the_project_is_refused(project, tmp_path, imports):
    touch(tmp_path / "other", "windlass_test_outside.py", text="def train():\n    pass\n")
    outside = imports(tmp_path / "other", "windlass_test_outside")
    found = replace(read_work_target(outside.train, cwd=project), source=project / "train.py")
    with pytest.raises(SpecError, match=r"windlass_test_outside is in .*other, outside") as caught:
        pack_target(found, project, tmp_path, paths=[project, tmp_path / "other"])
    assert caught.value.hint == "move it into the project, or install it in the image"


def test_installed_module_must_be_in_the_image(project, tmp_path):
    import json

    found = read_work_target(json.dumps, [1], cwd=project)
    packed = pack_target(found, project, tmp_path, paths=[project])
    assert "train.py" in unpack(packed, tmp_path / "node")  # the file in the current folder


# -- in the image --------------------------------------------------------------------------------


def test_targets_in_the_image_are_not_sent(project, tmp_path):
    found = read_in_image("/app/train.py::step", [3])
    packed = pack_target(found, project, tmp_path, in_image=True)
    assert packed.spec.work == Function(name="step", file="/app/train.py")
    assert packed.spec.cwd == str(project)
    assert packed.bundle is None
    assert [wanted.name for wanted in packed.inputs] == [names.PAYLOAD_FILE]
    script = pack_target(read_in_image("/app/train.py"), project, tmp_path, in_image=True)
    assert (script.inputs, script.bundle) == ((), None)
    assert not (tmp_path / "windlass").exists()


# -- the cache -----------------------------------------------------------------------------------


def test_an_unchanged_project_is_packed_once(project, tmp_path):
    found = read_work_target("train.py", cwd=project)
    first = pack_target(found, project, tmp_path).bundle
    before = first.stat()
    again = pack_target(found, project, tmp_path).bundle
    assert again == first
    assert (again.stat().st_ino, again.stat().st_mtime_ns) == (before.st_ino, before.st_mtime_ns)
    (project / "train.py").write_text("x = 2\n")
    changed = pack_target(found, project, tmp_path).bundle
    assert changed != first
    assert first.parent.stat().st_mode & 0o777 == 0o700
    assert sorted(first.parent.iterdir()) == sorted([first, changed])  # no partial archive remains


def test_only_the_last_bundles_are_kept(project, tmp_path):
    found = read_work_target("train.py", cwd=project)
    packed = []
    for number in range(12):
        (project / "train.py").write_text(f"x = {number}\n")
        packed.append(pack_target(found, project, tmp_path).bundle)
        os.utime(packed[-1], (number, number))  # file times are coarse
    assert sorted(packed[0].parent.iterdir()) == sorted(packed[-8:])


# -- refused folders -----------------------------------------------------------------------------


def test_a_home_folder_is_refused(tmp_path, monkeypatch):
    home = tmp_path / "person"
    touch(home, "train.py", "photos/one.png")
    monkeypatch.setenv("HOME", str(home))
    assert Path.home() == home
    found = read_work_target("train.py", cwd=home)
    with pytest.raises(BundleError, match="which contains far more than a project") as caught:
        pack_target(found, home, tmp_path)
    assert caught.value.hint == "move the code into a separate folder"
    assert not (tmp_path / "windlass").exists()


def test_folder_below_home_is_accepted(tmp_path, monkeypatch):
    home = tmp_path / "person"
    touch(home, "work/train.py", "photos/one.png")
    monkeypatch.setenv("HOME", str(home))
    found = read_work_target("train.py", cwd=home / "work")
    packed = pack_target(found, home / "work", tmp_path)
    assert unpack(packed, tmp_path / "node") == {"train.py"}


def test_installed_modules_must_be_in_the_image_in_any_environment(tmp_path, monkeypatch):
    """A virtual environment may be in a folder of the import path, next to the project."""
    for name, folder in (("packed", "env/lib/site-packages"), ("astray", "beside")):
        module = types.ModuleType(name)
        module.__file__ = str(tmp_path / folder / f"{name}.py")
        monkeypatch.setitem(sys.modules, name, module)
    root = tmp_path / "project"
    root.mkdir()
    check_modules(["packed"], root, [str(tmp_path)])
    with pytest.raises(SpecError, match="the module astray is in"):
        check_modules(["astray"], root, [str(tmp_path)])


def test_a_command_needs_no_project(tmp_path, monkeypatch):
    from windlass.client.jobs.run import prepare_job

    monkeypatch.chdir(tmp_path)
    flags = {"engine": "kubernetes", "image": "a:1"}
    plan = prepare_job(["no-such-program-here"], detach=True, flags=flags).plan
    assert (plan.work.argv, plan.cwd, plan.inputs) == (("no-such-program-here",), "", ())


@pytest.mark.parametrize(
    ("source", "travels"), [("from windlass.train import Loader", True), ("import torch", False)]
)
def test_training_library_is_requested_where_it_is_imported(project, tmp_path, source, travels):
    (project / "train.py").write_text(source)
    target = read_work_target("train.py", cwd=project)
    spec = JobSpec(work=target.work, cwd=str(project), pod=PodSpec(image="i"))
    packed = pack_code(spec, target, cwd=project, code_folder=THERE, home=tmp_path)
    assert (names.TRAIN in packed.spec.env) == travels


def test_code_of_the_image_may_import_it(tmp_path):
    target = read_in_image("/app/train.py")
    spec = JobSpec(work=target.work, pod=PodSpec(image="i", in_image=True))
    packed = pack_code(spec, target, cwd=tmp_path, code_folder=THERE, home=tmp_path)
    assert packed.spec.env[names.TRAIN] == "/windlass/job/files/train.pyz"
