"""The archive of the training library: ranks and commands find it, and it overrides the image's version.

Runs in interpreters without windlass but with torch, like those of images.
"""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
import torch

from windlass import names
from windlass.engines.archives import build_archive, build_train_archive, read_train_archive
from windlass.plan.plan import Facts, make_plan, render_plan
from windlass.spec.job_spec import JobSpec
from windlass.spec.work import Module, Script

SITE = str(Path(torch.__file__).parents[1])  # -S leaves editable installs out
LOOK = """
import json, sys
import windlass, windlass.train.preemption
modules = [sys.modules[name] for name in ("windlass", "windlass.names", "windlass.train")]
print(json.dumps([module.__file__.removesuffix("c") for module in modules]))
"""
TRAIN = """
import inspect, multiprocessing
from windlass.train.preemption import read_grace

if __name__ == "__main__":
    from windlass.train import get_context
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        [grace_s] = pool.map(read_grace, [{"WINDLASS_GRACE": "7"}])
    print(get_context().total(2.0)[0], grace_s, inspect.getsource(read_grace).partition("(")[0])
"""


@pytest.fixture(scope="module")
def pod(tmp_path_factory):
    """Return the archives in the layout of a pod."""
    folder = tmp_path_factory.mktemp("windlass")
    (folder / names.AGENT_FILE).write_bytes(build_archive(compiled=True))
    (folder / names.TRAIN_FILE).write_bytes(read_train_archive())
    return folder


def run_rank(pod, tmp_path, work, *site):
    """Run one rank of a job with the agent's own program."""
    (tmp_path / "attempt-0").mkdir()
    spec = JobSpec(work=work, cwd=str(tmp_path), peer_wait_s=0)
    plan = make_plan(spec, job_id="job-ab2cd", now_s=0.0, facts=Facts(environ={}))
    (tmp_path / names.PLAN_FILE).write_text(render_plan(plan))
    env = {
        "PATH": os.environ["PATH"],
        "PYTHONPATH": os.pathsep.join([*map(str, site), SITE]),
        names.TRAIN: str(pod / names.TRAIN_FILE),
    }
    program = [sys.executable, "-S", str(pod / names.AGENT_FILE), "rank"]
    done = subprocess.run(
        [*program, str(tmp_path / names.PLAN_FILE), "0", "0"],
        env=env, cwd=tmp_path, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


def write_package(folder, version):
    """Write a complete windlass package of some version, as an image contains it."""
    package = Path(folder) / "windlass"
    package.mkdir(parents=True)
    with zipfile.ZipFile(io.BytesIO(build_archive())) as archive:
        for name in archive.namelist():
            if name.startswith("windlass/"):
                path = Path(folder) / name
                path.parent.mkdir(parents=True, exist_ok=True)
                text = archive.read(name).decode()
                path.write_text(
                    text.replace(f'VERSION = "{names.VERSION}"', f'VERSION = "{version}"')
                )
    return folder


def test_equal_sources_give_equal_bytes():
    assert build_train_archive(compiled=True) == build_train_archive(compiled=True)


def test_rank_without_windlass_installed(pod, tmp_path):
    (tmp_path / "look.py").write_text(LOOK)
    printed = run_rank(pod, tmp_path, Script(path="look.py"))
    package, its_names, train = json.loads(printed)
    assert package == str(pod / "agent.pyz" / "windlass" / "__init__.py")
    assert its_names == str(pod / "agent.pyz" / "windlass" / "names.py")
    assert train == str(pod / "train.pyz" / "windlass" / "train" / "__init__.py")


def test_training_in_a_rank_and_its_child_process(pod, tmp_path):
    (tmp_path / "train.py").write_text(TRAIN)
    assert run_rank(pod, tmp_path, Script(path="train.py")) == "2.0 7.0 def read_grace\n"


@pytest.mark.parametrize("version", [names.VERSION, "0.0.1"])
def test_version_of_the_client_takes_precedence(pod, tmp_path, version):
    site = write_package(tmp_path / "site", version)
    (tmp_path / "look.py").write_text(LOOK)
    printed = run_rank(pod, tmp_path, Script(path="look.py"), site)
    package, its_names, train = json.loads(printed)
    rest = site if version == names.VERSION else pod / "agent.pyz"
    assert package == str(rest / "windlass" / "__init__.py")
    assert its_names == str(rest / "windlass" / "names.py")
    assert train == str(pod / "train.pyz" / "windlass" / "train" / "__init__.py")


def test_library_module_as_the_work(pod, tmp_path):
    assert run_rank(pod, tmp_path, Module(name="windlass.train.preemption")) == ""


def test_commands_find_it(pod, tmp_path):
    archive = str(pod / names.AGENT_FILE)
    look = "import windlass, windlass.train.preemption as p; print(windlass.__file__, p.__file__)"
    code = (
        f"import os, sys; sys.argv = [{archive!r}]; sys.path.insert(0, {archive!r})\n"
        "from pathlib import Path\n"
        "from windlass.agent.rank.rank_setup import lend_package\n"
        f"lend_package(Path({str(tmp_path / 'lent')!r}))\n"
        f"os.execv(sys.executable, [sys.executable, '-S', '-c', {look!r}])"
    )
    env = {names.TRAIN: str(pod / names.TRAIN_FILE)}
    done = subprocess.run(
        [sys.executable, "-S", "-c", code], env=env, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == [
        f"{archive}/windlass/__init__.pyc",
        str(pod / "train.pyz" / "windlass" / "train" / "preemption.pyc"),
    ]
