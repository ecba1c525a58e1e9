"""Image steps on a node: they run once and in order, on top of the installed packages."""

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

# The test results must not depend on the pip settings of the environment.
ENV = {name: value for name, value in os.environ.items() if not name.startswith(("PIP_", "UV_"))}


def pip(*packages):
    return PipStep(packages=packages)


def sh(command):
    return RunStep(command=command)


class Ground:
    """Folder of a node, a project, and an interpreter that has tiny 1.0 installed."""

    def __init__(self, path: Path) -> None:
        self.project = path / "project"
        self.wheels = self.project / "wheels"
        self.folder = path / "node"
        self.python = make_python(path / "below", make_wheel(path, "tiny", "1.0"))
        # empty, so that neither pip settings nor uv are found unless a test adds them
        self.bin = path / "bin"
        self.bin.mkdir()
        self.env = {**ENV, "HOME": str(path / "no-home"), "PIP_CONFIG_FILE": os.devnull}
        self.env["PATH"] = f"{self.bin}:/usr/bin:/bin"
        self.output: list[str] = []

    def run(self, *steps, python="", **more):
        self.output.clear()
        return asyncio.run(
            run_steps(
                steps,
                folder=self.folder,
                python=python or self.python,
                cwd=str(self.project),
                env=self.env,
                emit=self.output.append,
                **more,
            )
        )

    def ask(self, paths, code):
        """Return what code prints in a rank with these import paths."""
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


def test_wheel_of_the_project_is_installed_once(ground):
    make_wheel(ground.wheels, "small", "1.0", value=7)
    step = pip("./wheels/small-1.0-py3-none-any.whl")
    paths = ground.run(step)
    assert ground.ask(paths, "import small; print(small.VALUE)") == "7"
    assert ground.output[0] == "step 1 of 1: pip install ./wheels/small-1.0-py3-none-any.whl"
    assert any("Successfully installed small-1.0" in line for line in ground.output)
    assert ground.output[-1] == "`windlass image FILE.py` prints its Dockerfile"
    assert ground.run(step) == paths
    assert ground.output == []


def test_packages_of_the_interpreter_are_not_installed_again(ground):
    make_wheel(ground.wheels, "tiny", "1.5")
    make_wheel(ground.wheels, "needy", "1.0", requires=("tiny>=1",))
    paths = ground.run(index(ground, "needy"))
    assert not list(Path(paths[0]).glob("tiny*"))
    assert ground.ask(paths, "import needy, tiny; print(tiny.VERSION)") == "1.0"


def test_newer_package_shadows_the_one_of_the_interpreter(ground):
    make_wheel(ground.wheels, "tiny", "2.0", value=2)
    make_wheel(ground.wheels, "needy", "2.0", requires=("tiny>=2",))
    paths = ground.run(index(ground, "needy"))
    assert ground.ask(paths, "import tiny; print(tiny.VERSION)") == "2.0"
    assert ground.below() == "1.0 0"


@pytest.mark.long
def test_rebuilt_wheel_replaces_the_old_one(ground):
    step = pip("./wheels/tiny-1.0-py3-none-any.whl")
    # first the version of the interpreter's package, then the same version again
    for value in (3, 44):
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
    assert "found 1.0" in ground.output
    assert "to stderr" in ground.output
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
    (site / "mine.pth").write_text(f"{source}\n")  # `pip install -e` leaves this file
    paths = ground.run(sh("true"))
    assert ground.ask(paths, "import mine; print(mine.VALUE)") == "1"


# -- repeated runs ------------------------------------------------------------------------------------


def count(ground):
    path = ground.project / "count"
    return path.read_text().split() if path.exists() else []


def test_steps_before_a_change_are_not_repeated(ground):
    ground.project.mkdir()
    a, b, c = (sh(f"echo {name} >> count") for name in "abc")
    ground.run(a, b)
    ground.run(a, c)
    assert count(ground) == ["a", "b", "c"]
    assert any(line.startswith("no longer a step: echo b >> count") for line in ground.output)
    ground.run(a, c)
    assert count(ground) == ["a", "b", "c"]
    assert ground.output == []
    ground.run(b, a, c)
    assert count(ground) == ["a", "b", "c", "b", "a", "c"]
    assert not any(line.startswith("no longer") for line in ground.output)


def test_only_the_failed_step_is_repeated(ground):
    ground.project.mkdir()
    first = sh("echo once >> count")
    second = sh("seq 1 30; echo tried >> count; test -e ready")
    with pytest.raises(StepFailed) as caught:
        ground.run(first, second)
    message = str(caught.value)
    assert message.startswith("step 2 of 2, seq 1 30; echo tried")
    assert "exit code 1\n" in message
    assert "\n30\n" in message
    assert "\n10\n" not in message  # only the last lines
    (ground.project / "ready").touch()
    ground.run(first, second)
    assert count(ground) == ["once", "tried", "tried"]


def test_no_steps_give_no_paths(ground):
    assert ground.run() == []
    assert not (ground.folder / "site").exists()
    ground.project.mkdir()
    assert ground.run(sh("true"))
    assert ground.run() == []


def test_another_interpreter_repeats_all_steps(ground, tmp_path):
    ground.project.mkdir()
    ground.run(sh("echo a >> count"))
    other = tmp_path / "other"
    other.write_text(f'#!/bin/sh\nexec {ground.python} "$@"\n')
    other.chmod(0o755)
    ground.run(sh("echo a >> count"), python=str(other))
    assert count(ground) == ["a", "a"]


@pytest.mark.parametrize("torn", ["", "{", "[]", '{"python": 1}'])
def test_malformed_record_repeats_all_steps(ground, torn):
    ground.project.mkdir()
    ground.run(sh("echo a >> count"))
    (ground.folder / "steps.json").write_text(torn)
    ground.run(sh("echo a >> count"))
    assert count(ground) == ["a", "a"]


def test_chain_depends_on_the_files_it_names(tmp_path):
    steps = [pip("-r", "needs.txt", "--find-links=wheels", "tiny", "./lib[extra]"), sh("true")]
    for name in ("needs.txt", "wheels/a", "tiny/b", "lib/c", "lib/.git/d"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("1")
    seen = [make_chain(steps, tmp_path)]
    for name in ("needs.txt", "wheels/a", "lib/c"):
        (tmp_path / name).write_text("2")
        seen.append(make_chain(steps, tmp_path))
        assert seen[-1][0] != seen[-2][0], name
        assert seen[-1][1] != seen[-2][1], name  # and all later steps
    for name in ("tiny/b", "lib/.git/d"):  # `tiny` names the package, not the folder
        (tmp_path / name).write_text("2")
        assert make_chain(steps, tmp_path) == seen[-1]


# -- failures ----------------------------------------------------------------------------------------


def test_missing_package(ground):
    ground.wheels.mkdir(parents=True)
    with pytest.raises(StepFailed, match="No matching distribution found for nonesuch") as caught:
        ground.run(index(ground, "nonesuch"))
    assert "install a wheel of the project" in caught.value.hint
    assert json.loads((ground.folder / "steps.json").read_text())["done"] == []


def test_command_over_its_time_limit_is_killed_with_its_children(ground):
    ground.project.mkdir()
    with pytest.raises(StepFailed, match=r"sleep 600 .* did not finish within 2 s"):
        ground.run(sh("echo $$ > pid; sleep 600 & wait"), timeout_s=2.0)
    group = int((ground.project / "pid").read_text())
    wait_for(lambda: not _is_alive(group), "all its processes have exited", 10.0)


def _is_alive(group: int) -> bool:
    answer = subprocess.run(
        ["ps", "-eo", "pgid=,args="], capture_output=True, text=True, check=True
    )
    return any(
        "sleep 600" in line and int(line.split()[0]) == group for line in answer.stdout.splitlines()
    )


def test_background_process_does_not_block_the_step(ground):
    ground.project.mkdir()
    ground.run(sh("sleep 600 & echo $! > pid; echo done"), timeout_s=60.0)
    assert "done" in ground.output
    os.kill(int((ground.project / "pid").read_text()), signal.SIGKILL)


def test_exit_code_is_known_when_another_handler_reaps_children(ground):
    """An agent reaps all processes below it like this."""
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


def test_endless_output_is_truncated(ground):
    ground.project.mkdir()
    ground.run(sh("seq 1 6000; printf 'x%.0s' $(seq 1 9000)"))
    assert "5000" in ground.output
    assert "5001" not in ground.output
    assert "... 1005 more lines" in ground.output
    assert max(map(len, ground.output)) <= 2000


def test_passwords_in_urls_are_not_shown():
    step = pip("--index-url", "https://me:s3cret@example.org/simple", "small")
    assert "s3cret" not in label(step)


def test_an_unknown_step_is_refused():
    with pytest.raises(ProtocolError, match="unknown kind 'copy'"):
        read_step({"kind": "copy"})
    with pytest.raises(ProtocolError, match="expected str, found 3"):
        read_step({"kind": "run", "command": 3})


def test_two_agents_run_steps_in_turn(ground):
    ground.project.mkdir()
    step = sh("echo a >> count")

    async def both():
        about = {
            "folder": ground.folder,
            "python": ground.python,
            "cwd": str(ground.project),
            "env": ground.env,
            "emit": ground.output.append,
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


def test_uv_respects_the_packages_of_the_interpreter(uv):
    make_wheel(uv.wheels, "tiny", "2.0", value=2)
    make_wheel(uv.wheels, "needy", "1.0", requires=("tiny>=1",))
    make_wheel(uv.wheels, "needy", "2.0", requires=("tiny>=2",))
    paths = uv.run(index(uv, "needy==1.0"))
    assert " + needy==1.0" in uv.output
    assert uv.ask(paths, "import tiny; print(tiny.VERSION)") == "1.0"
    # the metadata that uv was given of the interpreter's packages is removed afterwards
    assert [path.name for path in Path(paths[0]).glob("*.dist-info")] == ["needy-1.0.dist-info"]
    uv.run(index(uv, "needy==1.0"), index(uv, "needy==2.0"))
    assert uv.ask(paths, "import tiny; print(tiny.VERSION)") == "2.0"
    assert uv.below() == "1.0 0"


def test_uv_replaces_a_rebuilt_wheel(uv):
    # of different size, because bytecode identifies sources by size and second
    for value in (3, 44):
        make_wheel(uv.wheels, "tiny", "1.0", value=value)
        paths = uv.run(pip("./wheels/tiny-1.0-py3-none-any.whl"))
        assert uv.ask(paths, "import tiny; print(tiny.VALUE)") == str(value)
    assert uv.below() == "1.0 0"


def test_pip_is_the_fallback_for_uv(uv):
    make_wheel(uv.wheels, "small", "1.0")
    step = pip("--no-index", "--find-links", "wheels", "--no-warn-script-location", "small")
    paths = uv.run(step)
    assert "uv failed; trying pip" in uv.output
    assert uv.ask(paths, "import small; print(small.VERSION)") == "1.0"


def test_uv_is_not_used_with_pip_index_settings(uv):
    make_wheel(uv.wheels, "small", "1.0")
    uv.env["PIP_FIND_LINKS"] = "wheels"
    uv.env["PIP_NO_INDEX"] = "1"
    uv.run(pip("small"))
    assert any("Successfully installed small-1.0" in line for line in uv.output)
