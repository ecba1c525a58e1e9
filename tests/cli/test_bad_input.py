"""Bad input. It gives a clear line, a hint and the right exit code, and starts nothing."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from cli.process import Ran

Cli = Callable[..., Ran]

USAGE: list[tuple[list[str], str, str]] = [
    (["rnu", "x"], "unknown command 'rnu'", "did you mean `windlass run`?"),
    *(
        ([word, "x"], f"unknown command {word!r}", f"did you mean `windlass {meant}`?")
        for word, meant in {
            "kill": "cancel",
            "stop": "cancel",
            "submit": "run",
            "launch": "run",
            "delete": "rm",
            "tail": "logs -f",
            "ps": "ls",
        }.items()
    ),
    (["work.py"], "unknown command 'work.py'", "did you mean `windlass run work.py`?"),
    (["--versoin"], "unknown option --versoin", "did you mean --version?"),
    (["ls", "--jsno"], "unknown option --jsno", "did you mean --json?"),
    (["run", "--nodse", "2", "work.py"], "unknown option --nodse", "did you mean --nodes?"),
    (["run"], "nothing to run", "`windlass run TARGET`: train.py"),
    (["run", "-m"], "-m requires the name of a module", "windlass run -m"),
    (["run", "wrok.py"], "script not found: wrok.py", "did you mean work.py?"),
    (["run", "no-such-command"], "no script or command named", "work.py"),
    (["run", "."], ". is a folder", "run a script in it"),
    (["run", "work.py::ad"], "function 'ad' not found", "did you mean 'add'?"),
    (["run", "work.py::"], "invalid function name", "FILE.py::FUNCTION"),
    (["run", "work.py::add"], "add requires --a (int)", "usage: windlass run"),
    (["run", "work.py::add", "x"], "a must be int, not 'x'", "usage"),
    (["run", "work.py::add", "1", "--bb", "2"], "add has no flag --bb", "did you mean --b?"),
    (["run", "work.py::add", "1", "--nods", "2"], "add has no flag --nods", "mean --nodes?"),
    (["run", "work.py", "--nodes"], "--nodes needs a value", ""),
    (["run", "work.py", "--nodes", "0"], "--nodes must be at least 1, not '0'", "nodes"),
    (["run", "work.py", "--procs", "two"], "--procs must be a whole number", "ranks"),
    (["run", "work.py", "--env", "NOVALUE"], "--env must be given as NAME=VALUE", ""),
    (
        ["run", "work.py", "--env", "1 2=3"],
        "invalid environment variable name",
        "--env",
    ),
    (["run", "work.py", "--timeout", "soon"], "--timeout must be a duration", "job"),
    (["run", "work.py", "--start", "forks"], "--start must be one of fork, spawn", ""),
    (["run", "work.py", "--engine", "locla"], "unknown engine 'locla'", "mean local?"),
    (
        ["run", "work.py", "--python", "no-python"],
        "Python interpreter 'no-python' not found",
        "Python",
    ),
    (["status"], "JOB is missing", "usage: windlass status"),
    (["status", "absent"], "job 'absent' not found on this machine", "windlass ls"),
    (["status", "mars://x"], "unknown engine 'mars'", "local"),
    (
        ["logs", "absent", "--grep", "("],
        "--grep '(' is not a valid regular expression",
        "backslash",
    ),
    (["logs", "absent", "--since", "soon"], "--since must be a duration", "5m"),
    (["logs", "absent", "--rank", "x"], "'x' is not a valid integer", "usage"),
    (["wait", "absent", "--timeout", "soon"], "--timeout: invalid duration 'soon'", "90s"),
    (["completion", "tcsh"], "'tcsh' is not one of", "usage"),
]


@pytest.mark.parametrize(
    ("words", "message", "hint"), USAGE, ids=[" ".join(words) for words, _, _ in USAGE]
)
def test_usage_errors(windlass: Cli, home: Path, words: list[str], message: str, hint: str) -> None:
    ran = windlass(*words)
    assert ran.code == 2, ran.err
    assert ran.out == ""
    assert ran.err.startswith("windlass: ")
    assert message in ran.err
    assert hint in ran.err.partition("\n  hint: ")[2]
    assert not (home / "jobs").exists()


def test_missing_jobs_and_ranks(windlass: Cli) -> None:
    job_id = windlass("run", "--", "true").job_id
    wrong = job_id[:-1] + ("a" if job_id[-1] != "a" else "b")
    assert f"did you mean {job_id}?" in windlass("status", wrong).err
    for words in (["logs", job_id, "--rank", "1"], ["logs", job_id, "--attempt", "3"]):
        ran = windlass(*words)
        assert ran.code == 2
        assert "0 only" in ran.err
    assert "rank -1 does not exist" in windlass("result", job_id, "--rank", "-1").err
    windlass("run", "--", "true")
    assert windlass("status", "true").code == 2


def test_misspelled_flag_is_refused_unless_it_belongs_to_the_target(
    windlass: Cli, project: Path
) -> None:
    ran = windlass("run", "show_args.py", "--nodse", "2")
    assert ran.code == 2
    assert "unknown flag --nodse" in ran.err
    assert (
        "did you mean --nodes? to pass it to show_args.py, write: show_args.py -- --nodse"
        in ran.err
    )
    assert not (project / "args-0.json").exists()
    assert windlass("run", "show_args.py", "--", "--nnodes", "2").code == 0
    assert "--nnodes" in (project / "args-0.json").read_text()
    ran = windlass("run", "echo", "--nnodes", "2")
    assert ran.code == 0
    assert "--nnodes is passed to echo; did you mean --nodes?" in ran.err


@pytest.mark.skipif(os.getuid() == 0, reason="root reads everything")
def test_a_script_that_cannot_be_read(windlass: Cli, project: Path) -> None:
    (project / "work.py").chmod(0)
    assert "cannot read" in windlass("run", "work.py").err


def test_a_script_with_a_mistake(windlass: Cli, project: Path) -> None:
    (project / "bad.py").write_text("def f(:\n")
    ran = windlass("run", "bad.py::f")
    assert ran.code == 2
    assert "line 1" in ran.err


def test_a_home_that_is_a_file(windlass: Cli, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    ran = windlass("run", "--", "true", env={"WINDLASS_HOME": str(tmp_path / "file")})
    assert ran.code == 3
    assert "hint:" in ran.err


def test_a_broken_project_file(windlass: Cli, project: Path) -> None:
    (project / "windlass.toml").write_text("nodes = [")
    ran = windlass("ls")
    assert ran.code == 2
    assert "windlass.toml is not valid TOML" in ran.err


def test_debug_shows_the_traceback(project: Path, windlass: Cli) -> None:
    import subprocess

    from cli.process import WINDLASS

    environ = {**os.environ, "WINDLASS_DEBUG": "1"}
    done = subprocess.run(
        [*WINDLASS, "status", "absent"], cwd=project, env=environ, capture_output=True, text=True
    )
    assert done.returncode == 2
    assert "Traceback (most recent call last)" in done.stderr
    assert "JobNotFound" in done.stderr


def test_variables_that_ranks_get_from_us_cannot_be_set(windlass: Cli, project: Path) -> None:
    ran = windlass("run", "show_args.py", "--env", "RANK=7")
    assert ran.code == 2
    assert "RANK is set by Windlass for each rank, so --env cannot set it" in ran.err


def test_a_variable_without_a_value_is_shown_as_it_was_typed(windlass: Cli, project: Path) -> None:
    ran = windlass("run", "show_args.py", "--env", "FOO")
    assert ran.code == 2
    assert "--env must be given as NAME=VALUE, not 'FOO'" in ran.err
    assert "{}" not in ran.err


def test_parameter_that_is_also_a_windlass_flag_is_reported(windlass: Cli, project: Path) -> None:
    (project / "named.py").write_text("def train(name: str):\n    return name\n")
    ran = windlass("run", "named.py::train", "--name", "x")
    assert ran.code == 2
    assert "for the target: named.py::train -- --name ..." in ran.err
    assert windlass("run", "named.py::train", "--", "--name", "x").out.splitlines()[-1] == "'x'"
