"""Ways to enter a target: scripts without .py, folders, flags that clash, and apps."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import windlass as wl
from windlass.cli.main import main

Capture = pytest.CaptureFixture[str]

BODY = """import sys
print("|".join([__name__, repr(__package__), sys.argv[0], sys.argv[1], str(__spec__ is None)]))
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run(*words: str, verb: str = "run") -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "windlass.cli.main", verb, *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=120)


def test_a_folder_runs_as_under_python(folder: Path) -> None:
    (folder / "app").mkdir()
    (folder / "app" / "beside.py").write_text("VALUE = 1\n")
    (folder / "app" / "__main__.py").write_text(
        BODY + "import beside\nprint(sys.path[0], __file__, __spec__.name)\n"
    )
    python = subprocess.run(
        [sys.executable, "app", "x"], capture_output=True, text=True, check=True
    )
    ran = run("-q", "app", "x")
    assert ran.returncode == 0, ran.stderr
    shown = run("app", "x").stdout.replace("[0/0] ", "")
    assert shown == python.stdout


def test_a_script_without_its_ending(folder: Path) -> None:
    (folder / "train").write_text('import sys\nprint("found", sys.argv)\n')
    ran = run("train", "x")
    assert ran.returncode == 0, ran.stderr
    assert "found ['train', 'x']" in ran.stdout


@pytest.mark.parametrize(
    "source",
    [
        'import argparse\np = argparse.ArgumentParser()\np.add_argument("--name")\n',
        "import absl.flags as f\nf.DEFINE_string('name', '', '')\n",
        "import typer\ndef main(name: str): ...\ntyper.run(main)\n",
        "import options\n",
        "import fields\nfrom transformers import HfArgumentParser\nHfArgumentParser(fields.Args)\n",
        "import fields, transformers\ntransformers.HfArgumentParser(fields.Args)\n",
        "import fields, tyro\ntyro.cli(fields.Args)\n",
        "import fields\nfrom simple_parsing import ArgumentParser\nArgumentParser()\n",
        "import fields\nfrom trl import TrlParser\nTrlParser(fields.Args)\n",
    ],
)
def test_flag_that_is_also_the_scripts_is_refused(folder: Path, source: str) -> None:
    (folder / "options.py").write_text("FLAG = '--name'\n")
    (folder / "fields.py").write_text(
        "from dataclasses import dataclass\n@dataclass\nclass Args:\n    name: str = 'a'\n"
    )
    (folder / "train.py").write_text(source)
    ran = run("train.py", "--name", "x", "--dry-run")
    assert ran.returncode == 2
    assert "--name is a flag of both Windlass and train.py" in ran.stderr
    assert "windlass run --name ... train.py; for the target: train.py -- --name ..." in ran.stderr
    assert run("--name", "x", "train.py", "--dry-run").returncode == 0
    assert run("train.py", "--dry-run", "--", "--name", "x").returncode == 0


@pytest.mark.parametrize("target", ["train.py", "train.py::main"])
def test_hint_for_an_ambiguous_flag_names_the_verb(folder: Path, target: str) -> None:
    (folder / "train.py").write_text("def main(namespace='--namespace'): ...\n")
    ran = run(target, "--namespace", "x", verb="export")
    assert ran.returncode == 2
    assert (
        f"windlass export --namespace ... {target}; for the target: {target} -- --nam" in ran.stderr
    )


def test_flag_that_is_also_a_parameter_is_refused(folder: Path) -> None:
    (folder / "train.py").write_text("def main(name='a'): ...\n")
    ran = run("train.py::main", "--name", "x", "--dry-run")
    assert ran.returncode == 2
    assert "--name is a flag of both Windlass and train.py::main" in ran.stderr


def test_unambiguous_windlass_flag_is_accepted_anywhere(folder: Path) -> None:
    (folder / "train.py").write_text("print(1)\n")
    assert "name: x" in run("train.py", "--name", "x", "--dry-run").stdout


@pytest.mark.parametrize(
    ("flag", "value", "owner", "instead"),
    [
        ("--nproc-per-node", "2", "torchrun", "write --procs 2"),
        ("--nproc_per_node", "gpu", "torchrun", "write --gpus N"),
        ("--nnodes", "2", "torchrun", "write --nodes 2"),
        ("--node-rank", "1", "torchrun", "omit it"),
        ("--rdzv-endpoint", "host:29500", "torchrun", "omit it"),
        ("--standalone", "", "torchrun", "omit it"),
        ("--max-restarts", "3", "torchrun", "write --restarts 3"),
        ("--num_processes", "2", "accelerate launch", "write --procs 2"),
        ("--num_machines", "2", "accelerate launch", "write --nodes 2"),
        ("--num_gpus", "2", "deepspeed", "write --gpus 2"),
    ],
)
@pytest.mark.parametrize("equals", [False, True])
def test_flags_of_launchers_are_refused_and_translated(
    folder: Path, flag: str, value: str, owner: str, instead: str, equals: bool, capsys: Capture
) -> None:
    (folder / "train.py").write_text("print(1)\n")
    words = [f"{flag}={value}"] if equals and value else [flag, *([value] if value else [])]
    for argv in ([*words, "train.py"], ["train.py", *words], ["python", "train.py", *words]):
        assert main(["run", *argv, "--dry-run"]) == 2
        errors = capsys.readouterr().err
        assert f"{f'{flag} {value}'.strip()} is a flag of {owner}" in errors
        assert instead in errors
    # after the dashes, the flag belongs to the script
    assert main(["run", "train.py", "--dry-run", "--", *words]) == 0


@pytest.mark.parametrize(
    "source",
    [
        "import argparse\np = argparse.ArgumentParser()\np.add_argument('--num_processes')\n",
        "import click\nclick.option('--num-processes')\n",
        "import fields, transformers\ntransformers.HfArgumentParser(fields.Args)\n",
    ],
)
def test_launcher_flag_that_the_script_declares_belongs_to_it(
    folder: Path, source: str, capsys: Capture
) -> None:
    (folder / "fields.py").write_text("class Args:\n    num_processes: int = 1\n")
    (folder / "train.py").write_text(source)
    assert main(["run", "train.py", "--num_processes", "4", "--dry-run"]) == 0
    assert "--num_processes" in capsys.readouterr().out


def test_launcher_flag_belongs_to_a_function_with_that_parameter(
    folder: Path, capsys: Capture
) -> None:
    (folder / "train.py").write_text("def own(nnodes: int): ...\ndef none(): ...\n")
    assert main(["run", "train.py::own", "--nnodes", "2", "--dry-run"]) == 0
    assert main(["run", "train.py::none", "--nnodes", "2", "--dry-run"]) == 2
    assert "write --nodes" in capsys.readouterr().err


@pytest.mark.parametrize(
    "words",
    [["--image", "a:1"], ["--memory", "1Gi"], ["--volume", "claim:/data"], ["--queue", "q"]],
)
def test_pod_flags_are_refused_without_pods(
    folder: Path, words: list[str], capsys: Capture
) -> None:
    (folder / "train.py").write_text("def main(): ...\n")
    for target in ("train.py", "train.py::main"):
        assert main(["run", target, *words, "--dry-run"]) == 2
        errors = capsys.readouterr().err
        assert f"{words[0]} is for pods, but the engine local has none" in errors
        assert "-e kubernetes" in errors


def test_pod_settings_in_a_project_file_are_accepted(
    folder: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "train.py").write_text("print(1)\n")
    (folder / "windlass.toml").write_text('image = "a:1"\nmemory = "1Gi"\n')
    monkeypatch.setenv("WINDLASS_QUEUE", "q")
    assert main(["run", "train.py", "--dry-run"]) == 0
    assert main(["run", "train.py", "--framework", "ray", "--cpus", "1", "--dry-run"]) == 0


def test_a_launcher_keeps_its_flags(folder: Path, capsys: Capture) -> None:
    (folder / "train.py").write_text("print(1)\n")
    words = ["torchrun", "--nproc-per-node", "2", "--nnodes", "1", "train.py"]
    assert main(["run", *words, "--dry-run"]) == 0
    assert "is a flag of" not in capsys.readouterr().err


APP = "import windlass as kt\nx = kt.app('echo hi', name='a')\n"


@pytest.mark.parametrize(
    "target", [["python", "my_script.py"], ["my_script.py"], ["-e", "local", "my_script.py"]]
)
def test_a_script_that_only_declares_an_app_is_deployed(
    folder: Path, home: Path, target: list[str]
) -> None:
    (folder / "my_script.py").write_text(APP)
    ran = run(*target)
    assert ran.returncode == 0, ran.stderr
    assert "my_script.py only declares app(...), so it is deployed" in ran.stderr
    name, kind, ref = ran.stdout.split()
    assert (name, kind) == ("a", "app")
    job = wl.attach(ref)
    assert job.wait(60).phase.value == "succeeded"
    assert [line.text for line in job.logs()] == ["hi"]


@pytest.mark.parametrize("words", [["--nodes", "2", "my_script.py"], ["my_script.py", "--dry-run"]])
def test_script_with_an_app_has_a_hint_to_run_it_otherwise(folder: Path, words: list[str]) -> None:
    (folder / "my_script.py").write_text(APP)
    ran = run(*words)
    assert ran.returncode == 2
    assert "my_script.py only declares app(...), which starts nothing by itself" in ran.stderr
    assert "windlass deploy my_script.py" in ran.stderr
