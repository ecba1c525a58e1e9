"""Verbs: the flags of each, the cost of `--help`, and the verbs about this machine."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import click
import pytest
from cli.process import WINDLASS, Ran

from windlass import __version__
from windlass.cli.verb_table import VERBS, cli

Cli = Callable[..., Ran]

JOB = [
    "--engine", "--env", "--grace", "--join-timeout", "--lease", "--name", "--nodes", "--preload",
    "--procs", "--python", "--restarts", "--start", "--timeout", "-e", "--gpus", "--node-restarts",
    "--image", "--in-image", "--context", "--namespace", "--cpus", "--memory", "--ephemeral-storage",
    "--shm", "--request", "--gpu-type", "--gpu-label", "--gpu-resource", "--node-selector",
    "--toleration", "--spread", "--pack", "--priority-class", "--queue", "--service-account",
    "--run-as", "--runtime", "--pull-secret", "--secret", "--volume", "--allow-host-path", "--label",
    "--annotation", "--ttl", "--patch", "--peer-wait", "--framework", "--pretend-gpus",
    "--mesh-name", "--open-mesh",
]  # fmt: skip
EXPORT = ["--operator", "--plain", "--split", "--with-keys", "--rdzv-backend", "--rdzv-endpoint"]
PLACE = ["--engine", "-e", "--namespace", "--context"]
FLAGS = {
    "run": [*JOB, "--detach", "--dry-run", "--json", "--quiet", "-q"],
    "deploy": [*PLACE, "--json", "--replace"],
    "call": [*PLACE, "--json"],
    "compute": [],
    "ls": [*PLACE, "--all", "--json", "-a"],
    "status": [*PLACE, "--json"],
    "why": [*PLACE, "--json"],
    "logs": [
        *PLACE,
        "--attempt",
        "--follow",
        "--grep",
        "--json",
        "--node",
        "--rank",
        "--since",
        "-f",
    ],
    "wait": [*PLACE, "--json", "--timeout"],
    "result": [*PLACE, "--json", "--rank"],
    "report": [*PLACE, "--json", "--png"],
    "attach": [*PLACE],
    "port-forward": [*PLACE],
    "cancel": [*PLACE, "--json", "--now"],
    "rm": [*PLACE, "--ended", "--json"],
    "export": [*JOB, *EXPORT, "--json"],
    "image": ["--json"],
    "doctor": [*PLACE, "--deep", "--image", "--json", "--role"],
    "engines": ["--context", "--json", "--namespace"],
    "conformance": [*PLACE, "--all", "--image", "--json", "--shared-claim", "-k"],
    "config": ["--json"],
    "completion": [],
    "version": ["--json"],
}


def test_flags_of_every_verb() -> None:
    ctx = click.Context(cli)
    found = {}
    for name in cli.list_commands(ctx):
        command = cli.get_command(ctx, name)
        assert command is not None
        options = [param for param in command.params if isinstance(param, click.Option)]
        found[name] = sorted(name for option in options for name in option.opts)
    assert found == {name: sorted(flags) for name, flags in FLAGS.items()}


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_has_help(verb: str, windlass: Cli) -> None:
    ran = windlass(verb, "--help")
    assert ran.code == 0
    assert ran.out.startswith(f"Usage: windlass {verb}")
    assert ran.err == ""


def test_help_imports_little() -> None:
    code = (
        "import sys; from windlass.cli.main import main; main(['--help']); "
        "print(*sys.modules, file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    loaded = set(done.stderr.split())
    heavy = {"torch", "yaml", "cloudpickle", "asyncio", "numpy", "urllib3", "cryptography"}
    assert "click" in loaded
    assert not loaded & {
        *heavy,
        "windlass.client.jobs.run",
        "windlass.cli.verbs.run",
        "windlass.kube",
    }


@pytest.mark.parametrize("verb", ["run", "ls", "doctor", "export"])
def test_no_verb_imports_torch_here(verb: str, project: Path) -> None:
    words = {"run": ["run", "--dry-run", "work.py"], "export": ["export", "work.py"]}
    code = (
        f"import sys; from windlass.cli.main import main; main({words.get(verb, [verb])!r}); "
        "sys.exit('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=project, capture_output=True)
    assert done.returncode == 0


def test_help_without_a_verb(windlass: Cli) -> None:
    ran = windlass()
    assert ran.code == 0
    for verb in VERBS:
        assert f"\n  {verb} " in ran.out


def test_version(windlass: Cli) -> None:
    assert windlass("--version").out == f"windlass {__version__}\n"
    assert windlass("version").out == f"windlass {__version__}\n"
    assert windlass("version", "--json").json["windlass"] == __version__


def test_config_shows_the_source_of_each_value(windlass: Cli, project: Path, home: Path) -> None:
    (project / "windlass.toml").write_text("nodes = 3\nenv = {A = 'b c'}\n")
    found = windlass("config", "--json", env={"WINDLASS_PROCS": "2"}).json
    assert found["nodes"]["value"] == 3
    assert found["nodes"]["origin"].endswith("windlass.toml")
    assert found["procs"] == {**found["procs"], "value": 2, "origin": "environment WINDLASS_PROCS"}
    assert found["home"]["value"] == str(home)
    shown = windlass("config").out
    assert "A=b c" in shown
    assert "SETTING" in shown


def test_config_set_changes_one_line_of_the_project_file(windlass: Cli, project: Path) -> None:
    path = project / "windlass.toml"
    path.write_text("# ours\nnodes = 3  # three\n\n[env]\nimage = 'no setting'\n")
    for name, value in {"image": "a/b:1", "nodes": "2:4", "detach-not": "1"}.items():
        ran = windlass("config", "set", name, value)
        assert ran.code == (2 if name == "detach-not" else 0), ran.err
    text = '# ours\nnodes = "2:4"\nimage = "a/b:1"\n\n[env]\nimage = \'no setting\'\n'
    assert path.read_text() == text
    found = windlass("config", "--json").json
    assert (found["image"]["value"], found["image"]["origin"]) == ("a/b:1", str(path))
    for name, value, says in (
        ("procs", "many", "must be a whole number"),
        ("env", "A=1", "env is a table, which this command cannot set"),
        ("imgae", "x", "unknown setting 'imgae'"),
    ):
        ran = windlass("config", "set", name, value)
        assert (ran.code, says in ran.err) == (2, True), ran.err
    assert path.read_text() == text


def test_config_set_creates_the_file_in_the_project_folder(windlass: Cli, project: Path) -> None:
    (project / "windlass.toml").unlink(missing_ok=True)
    (project / ".git").mkdir(exist_ok=True)
    (project / "inner").mkdir()
    ran = windlass("config", "set", "gpus", "2", cwd=project / "inner")
    assert ran.code == 0, ran.err
    assert (project / "windlass.toml").read_text() == "gpus = 2\n"


def test_config_set_does_not_change_pyproject(windlass: Cli, project: Path) -> None:
    (project / "windlass.toml").unlink(missing_ok=True)
    (project / "pyproject.toml").write_text("[tool.windlass]\nnodes = 2\n")
    ran = windlass("config", "set", "image", "a:1")
    assert ran.code == 2
    assert 'add under [tool.windlass]: image = "a:1"' in ran.err
    assert not (project / "windlass.toml").exists()


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_scripts(windlass: Cli, shell: str, tmp_path: Path) -> None:
    script = windlass("completion", shell).out
    assert "_WINDLASS_COMPLETE" in script
    if shell == "bash":
        subprocess.run(["bash", "-n"], input=script, text=True, check=True)


def test_completion_offers_verbs_flags_and_jobs(windlass: Cli, project: Path) -> None:
    job_id = windlass("run", "--", "true").job_id

    def complete(*words: str) -> list[str]:
        environ = {
            **os.environ,
            "_WINDLASS_COMPLETE": "bash_complete",
            "COMP_WORDS": " ".join(["windlass", *words]),
            "COMP_CWORD": str(len(words)),
        }
        done = subprocess.run(
            WINDLASS, cwd=project, env=environ, capture_output=True, text=True, check=True
        )
        return [line.partition(",")[2] for line in done.stdout.splitlines()]

    assert complete("st") == ["status"]
    assert complete("status", job_id[:3]) == [job_id]
    assert complete("logs", job_id, "--ra") == ["--rank"]
    assert complete("run", "--nodes") == ["--nodes"]
    assert complete("run", "wo") == ["wo"]  # a file, which the shell completes


def test_doctor(windlass: Cli, home: Path) -> None:
    ran = windlass("doctor", "--json")
    assert ran.code == 0
    found = {check["name"]: check for check in ran.json}
    assert found["python"]["state"] == "ok"
    assert found["engine local"]["state"] == "ok"
    assert str(home) in found["home"]["found"]


def test_doctor_reports_what_all_jobs_lack(windlass: Cli, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    ran = windlass(
        "doctor", env={"WINDLASS_HOME": str(tmp_path / "file" / "x"), "WINDLASS_PYTHON": "no"}
    )
    assert ran.code == 3
    assert "jobs cannot run without: home, ranks' python" in ran.err
    assert "-> " in ran.out
