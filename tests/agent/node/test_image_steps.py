"""Steps of an image on a node: run once, in order, over what is installed and never into it."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import signal
import subprocess
from pathlib import Path

import pytest
from waits import wait_for
from wheels import make_python, make_wheel

from windlass.agent.image_steps import label, make_chain, run_steps
from windlass.errors import ProtocolError, StepFailed
from windlass.spec.work import PipStep, RunStep, read_step

# Without the pip settings of the surroundings: what is tested must not depend on them.
ENV = {name: value for name, value in os.environ.items() if not name.startswith(("PIP_", "UV_"))}


def pip(*packages):
    return PipStep(packages=packages)


def sh(command):
    return RunStep(command=command)


class Ground:
    """A node's folder, a project, and an interpreter with tiny 1.0 in it."""

    def __init__(self, path: Path) -> None:
        self.project = path / "project"
        self.wheels = self.project / "wheels"
        self.folder = path / "node"
        self.python = make_python(path / "below", make_wheel(path, "tiny", "1.0"))
        # empty, so that no settings of pip, and no uv unless it is put there, are found
        self.bin = path / "bin"
        self.bin.mkdir()
        self.env = {**ENV, "HOME": str(path / "no-home"), "PIP_CONFIG_FILE": os.devnull}
        self.env["PATH"] = f"{self.bin}:/usr/bin:/bin"
        self.said: list[str] = []

    def run(self, *steps, python="", **more):
        self.said.clear()
        return asyncio.run(
            run_steps(
                steps,
                folder=self.folder,
                python=python or self.python,
                cwd=str(self.project),
                env=self.env,
                say=self.said.append,
                **more,
            )
        )

    def ask(self, paths, code):
        """What a rank with these import paths would find."""
        env = {**self.env, "PYTHONPATH": ":".join(paths)}
        answer = subprocess.run(
            [self.python, "-c", code], env=env, cwd="/", capture_output=True, text=True, check=True
        )
        return answer.stdout.strip()

    def below(self):
        return self.ask([], "import tiny; print(tiny.VERSION, tiny.VALUE)")


@pytest.fixture
def ground(tmp_path):
    return Ground(tmp_path)


def index(ground, *packages):
    return pip("--no-index", "--find-links", "wheels", *packages)


def test_a_wheel_that_travels_with_the_project_is_installed_once(ground):
    make_wheel(ground.wheels, "small", "1.0", value=7)
    step = pip("./wheels/small-1.0-py3-none-any.whl")
    paths = ground.run(step)
    assert ground.ask(paths, "import small; print(small.VALUE)") == "7"
    assert ground.said[0] == "step 1 of 1: pip install ./wheels/small-1.0-py3-none-any.whl"
    assert any("Successfully installed small-1.0" in line for line in ground.said)
    assert ground.said[-1] == "windlass image FILE.py prints its Dockerfile"
    assert ground.run(step) == paths
    assert ground.said == []


def test_what_is_installed_below_is_not_installed_again(ground):
    make_wheel(ground.wheels, "tiny", "1.5")
    make_wheel(ground.wheels, "needy", "1.0", requires=("tiny>=1",))
    paths = ground.run(index(ground, "needy"))
    assert not list(Path(paths[0]).glob("tiny*"))
    assert ground.ask(paths, "import needy, tiny; print(tiny.VERSION)") == "1.0"


def test_what_is_newer_lies_on_top_and_below_nothing_changes(ground):
    make_wheel(ground.wheels, "tiny", "2.0", value=2)
    make_wheel(ground.wheels, "needy", "2.0", requires=("tiny>=2",))
    paths = ground.run(index(ground, "needy"))
    assert ground.ask(paths, "import tiny; print(tiny.VERSION)") == "2.0"
    assert ground.below() == "1.0 0"


@pytest.mark.long
def test_a_wheel_that_was_built_anew_replaces_the_old_one(ground):
    step = pip("./wheels/tiny-1.0-py3-none-any.whl")
    for value in (3, 44):  # of the version that is below, and then of the same once more
        make_wheel(ground.wheels, "tiny", "1.0", value=value)
        paths = ground.run(step)
        assert ground.ask(paths, "import tiny; print(tiny.VALUE)") == str(value)
    assert ground.below() == "1.0 0"


def test_commands_run_in_the_project_with_its_own_python_and_pip(ground):
    make_wheel(ground.wheels, "small", "1.0")
    paths = ground.run(
        sh("pip install --no-index ./wheels/small-1.0-py3-none-any.whl && pwd > where"),
        sh("python -c 'import small, tiny; print(\"found\", small.VERSION)'; echo to stderr >&2"),
    )
    assert (ground.project / "where").read_text().strip() == str(ground.project)
    assert "found 1.0" in ground.said
    assert "to stderr" in ground.said
    assert ground.ask(paths, "import small; print(small.VERSION)") == "1.0"
    with pytest.raises(subprocess.CalledProcessError):
        ground.ask([], "import small")


def test_pip_is_not_misled_by_files_of_the_project(ground):
    make_wheel(ground.wheels, "small", "1.0")
    (ground.project / "queue.py").write_text(
        "raise SystemExit('this is not the queue of Python')\n"
    )
    (ground.project / "venv").mkdir()
    ground.run(index(ground, "small"))


def test_an_editable_project_is_found(ground):
    source = ground.project / "lib" / "src"
    source.mkdir(parents=True)
    (source / "mine.py").write_text("VALUE = 1\n")
    ground.run(sh("true"))
    (site,) = (ground.folder / "site").glob("lib/python*/site-packages")
    (site / "mine.pth").write_text(f"{source}\n")  # what `pip install -e` leaves
    paths = ground.run(sh("true"))
    assert ground.ask(paths, "import mine; print(mine.VALUE)") == "1"


# -- what is run again -------------------------------------------------------------------------------


def count(ground):
    path = ground.project / "count"
    return path.read_text().split() if path.exists() else []


def test_steps_before_a_change_stay(ground):
    ground.project.mkdir()
    a, b, c = (sh(f"echo {name} >> count") for name in "abc")
    ground.run(a, b)
    ground.run(a, c)
    assert count(ground) == ["a", "b", "c"]
    assert any(line.startswith("no longer a step: echo b >> count") for line in ground.said)
    ground.run(a, c)
    assert count(ground) == ["a", "b", "c"]
    assert ground.said == []
    ground.run(b, a, c)
    assert count(ground) == ["a", "b", "c", "b", "a", "c"]
    assert not any(line.startswith("no longer") for line in ground.said)


def test_a_step_that_failed_is_run_again_and_those_before_it_are_not(ground):
    ground.project.mkdir()
    first = sh("echo once >> count")
    second = sh("seq 1 30; echo tried >> count; test -e ready")
    with pytest.raises(StepFailed) as caught:
        ground.run(first, second)
    message = str(caught.value)
    assert message.startswith("step 2 of 2, seq 1 30; echo tried")
    assert "exit code 1\n" in message
    assert "\n30\n" in message
    assert "\n10\n" not in message  # the last lines only
    (ground.project / "ready").touch()
    ground.run(first, second)
    assert count(ground) == ["once", "tried", "tried"]


def test_no_steps_leave_no_paths(ground):
    assert ground.run() == []
    assert not (ground.folder / "site").exists()
    ground.project.mkdir()
    assert ground.run(sh("true"))
    assert ground.run() == []


def test_another_interpreter_starts_anew(ground, tmp_path):
    ground.project.mkdir()
    ground.run(sh("echo a >> count"))
    other = tmp_path / "other"
    other.write_text(f'#!/bin/sh\nexec {ground.python} "$@"\n')
    other.chmod(0o755)
    ground.run(sh("echo a >> count"), python=str(other))
    assert count(ground) == ["a", "a"]


@pytest.mark.parametrize("torn", ["", "{", "[]", '{"python": 1}'])
def test_a_record_that_cannot_be_read_means_that_all_is_run(ground, torn):
    ground.project.mkdir()
    ground.run(sh("echo a >> count"))
    (ground.folder / "steps.json").write_text(torn)
    ground.run(sh("echo a >> count"))
    assert count(ground) == ["a", "a"]


def test_a_chain_knows_the_files_it_names(tmp_path):
    steps = [pip("-r", "needs.txt", "--find-links=wheels", "tiny", "./lib[extra]"), sh("true")]
    for name in ("needs.txt", "wheels/a", "tiny/b", "lib/c", "lib/.git/d"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("1")
    seen = [make_chain(steps, tmp_path)]
    for name in ("needs.txt", "wheels/a", "lib/c"):
        (tmp_path / name).write_text("2")
        seen.append(make_chain(steps, tmp_path))
        assert seen[-1][0] != seen[-2][0], name
        assert seen[-1][1] != seen[-2][1], name  # and all after it
    for name in ("tiny/b", "lib/.git/d"):  # the package tiny, not the folder
        (tmp_path / name).write_text("2")
        assert make_chain(steps, tmp_path) == seen[-1]


# -- failures ----------------------------------------------------------------------------------------


def test_a_package_that_is_not_there(ground):
    ground.wheels.mkdir(parents=True)
    with pytest.raises(StepFailed, match="No matching distribution found for nonesuch") as caught:
        ground.run(index(ground, "nonesuch"))
    assert "install a wheel of the project" in caught.value.hint
    assert json.loads((ground.folder / "steps.json").read_text())["done"] == []


def test_a_command_that_takes_too_long_is_ended_with_all_below_it(ground):
    ground.project.mkdir()
    with pytest.raises(StepFailed, match=r"sleep 600 .* did not finish within 2 s"):
        ground.run(sh("echo $$ > pid; sleep 600 & wait"), timeout_s=2.0)
    group = int((ground.project / "pid").read_text())
    wait_for(lambda: not _is_alive(group), "nothing of it runs", 10.0)


def _is_alive(group: int) -> bool:
    answer = subprocess.run(
        ["ps", "-eo", "pgid=,args="], capture_output=True, text=True, check=True
    )
    return any(
        "sleep 600" in line and int(line.split()[0]) == group for line in answer.stdout.splitlines()
    )


def test_what_is_left_in_the_background_keeps_nobody_waiting(ground):
    ground.project.mkdir()
    ground.run(sh("sleep 600 & echo $! > pid; echo done"), timeout_s=60.0)
    assert "done" in ground.said
    os.kill(int((ground.project / "pid").read_text()), signal.SIGKILL)


def test_the_exit_code_is_known_where_children_are_reaped_by_others(ground):
    """As in an agent, which reaps whatever ends below it."""
    ground.project.mkdir()

    def reap(*_):
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass

    before = signal.signal(signal.SIGCHLD, reap)
    try:
        ground.run(sh("true"))
        with pytest.raises(StepFailed, match="exit code 7"):
            ground.run(sh("true"), sh("exit 7"))
    finally:
        signal.signal(signal.SIGCHLD, before)


def test_output_without_end_is_cut(ground):
    ground.project.mkdir()
    ground.run(sh("seq 1 6000; printf 'x%.0s' $(seq 1 9000)"))
    assert "5000" in ground.said
    assert "5001" not in ground.said
    assert "... 1005 more lines" in ground.said
    assert max(map(len, ground.said)) <= 2000


def test_passwords_in_addresses_are_not_told():
    step = pip("--index-url", "https://me:s3cret@example.org/simple", "small")
    assert "s3cret" not in label(step)


def test_an_unknown_step_is_refused():
    with pytest.raises(ProtocolError, match="unknown kind 'copy'"):
        read_step({"kind": "copy"})
    with pytest.raises(ProtocolError, match="expected str, found 3"):
        read_step({"kind": "run", "command": 3})


def test_two_agents_run_steps_one_after_the_other(ground):
    ground.project.mkdir()
    step = sh("echo a >> count")

    async def both():
        about = {
            "folder": ground.folder,
            "python": ground.python,
            "cwd": str(ground.project),
            "env": ground.env,
            "say": ground.said.append,
        }
        return await asyncio.gather(run_steps([step], **about), run_steps([step], **about))

    first, second = asyncio.run(both())
    assert first == second
    assert count(ground) == ["a"]


# -- uv ----------------------------------------------------------------------------------------------


@pytest.fixture
def uv(ground):
    found = shutil.which("uv")
    if found is None:
        pytest.skip("needs uv on PATH")
    (ground.bin / "uv").symlink_to(found)
    ground.env |= {"UV_NO_CONFIG": "1", "UV_CACHE_DIR": str(ground.folder.parent / "cache")}
    return ground


def test_uv_sees_what_is_below_and_leaves_it_alone(uv):
    make_wheel(uv.wheels, "tiny", "2.0", value=2)
    make_wheel(uv.wheels, "needy", "1.0", requires=("tiny>=1",))
    make_wheel(uv.wheels, "needy", "2.0", requires=("tiny>=2",))
    paths = uv.run(index(uv, "needy==1.0"))
    assert " + needy==1.0" in uv.said
    assert uv.ask(paths, "import tiny; print(tiny.VERSION)") == "1.0"
    # what it was told of the packages below is gone when it has ended
    assert [path.name for path in Path(paths[0]).glob("*.dist-info")] == ["needy-1.0.dist-info"]
    uv.run(index(uv, "needy==1.0"), index(uv, "needy==2.0"))
    assert uv.ask(paths, "import tiny; print(tiny.VERSION)") == "2.0"
    assert uv.below() == "1.0 0"


def test_uv_replaces_a_wheel_that_was_built_anew(uv):
    for value in (3, 44):  # of another size: byte code knows sources by size and second
        make_wheel(uv.wheels, "tiny", "1.0", value=value)
        paths = uv.run(pip("./wheels/tiny-1.0-py3-none-any.whl"))
        assert uv.ask(paths, "import tiny; print(tiny.VALUE)") == str(value)
    assert uv.below() == "1.0 0"


def test_pip_does_what_uv_cannot(uv):
    make_wheel(uv.wheels, "small", "1.0")
    step = pip("--no-index", "--find-links", "wheels", "--no-warn-script-location", "small")
    paths = uv.run(step)
    assert "uv failed; trying pip" in uv.said
    assert uv.ask(paths, "import small; print(small.VERSION)") == "1.0"


def test_where_pip_was_told_where_packages_come_from_uv_is_not_used(uv):
    make_wheel(uv.wheels, "small", "1.0")
    uv.env["PIP_FIND_LINKS"] = "wheels"
    uv.env["PIP_NO_INDEX"] = "1"
    uv.run(pip("small"))
    assert any("Successfully installed small-1.0" in line for line in uv.said)
