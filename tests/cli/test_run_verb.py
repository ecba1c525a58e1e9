"""`windlass run` in separate processes."""

from __future__ import annotations

import json
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from cli.process import Ran

Cli = Callable[..., Ran]

HARD = [
    "",
    "two words",
    "it's",
    '"quoted"',
    "$HOME",
    "`id`",
    "a\nb",
    "naïve ☃",
    "*",
    "--nodes",
    "\\",
]


def test_a_function_prints_its_value_on_stdout(windlass: Cli) -> None:
    ran = windlass("run", "work.py::add", "1", "--b", "40")
    assert ran.code == 0
    assert ran.out.splitlines() == ["[0/0] adding on 0", "41"]
    assert "[0/0] to stderr" in ran.err
    assert f"windlass: {ran.job_id} on local (default), 1 node x 1 proc" in ran.err
    assert f"✓ job {ran.job_id} succeeded" in ran.err
    assert [line.split()[0] for line in ran.err.splitlines() if line.endswith(" s")][:2] == [
        "agent",
        "nodes",
    ]


def test_values_of_several_ranks_are_named(windlass: Cli) -> None:
    ran = windlass("run", "work.py::add", "--a=1", "--nodes", "2", "--procs", "2", "--quiet")
    assert ran.out.splitlines() == [f"rank {rank}: 3" for rank in range(4)]
    assert ran.err == ""


def test_windlass_flags_before_the_dashes_and_function_flags_after(
    windlass: Cli, project: Path
) -> None:
    (project / "own.py").write_text("def own(nodes, quiet=False): return nodes, quiet\n")
    ran = windlass("run", "own.py::own", "--quiet", "--", "--nodes", "7", "--quiet")
    assert (ran.code, ran.out) == (0, "(7, True)\n")


@pytest.mark.parametrize("dashes", [True, False])
def test_script_gets_its_arguments_unchanged(windlass: Cli, project: Path, dashes: bool) -> None:
    words = HARD if dashes else [word for word in HARD if word != "--nodes"]
    ran = windlass("run", "show_args.py", *(["--"] if dashes else []), *words)
    assert ran.code == 0, ran.err
    assert json.loads((project / "args-0.json").read_text()) == ["show_args.py", *words]


def test_a_module(windlass: Cli, project: Path) -> None:
    assert windlass("run", "-m", "show_args", "--flag", "--", "x y").code == 0
    assert json.loads((project / "args-0.json").read_text())[1:] == ["--flag", "x y"]


def test_a_command(windlass: Cli) -> None:
    ran = windlass("run", "--procs", "2", "bash", "-c", 'echo "$RANK:$0"', "it's", "--quiet")
    assert (ran.code, ran.out, ran.err) == (0, "", "")
    ran = windlass("run", "--", "bash", "-c", 'echo "$0"', "--quiet")
    assert ran.out == "[0/0] --quiet\n"


def test_env_and_name_reach_the_rank(windlass: Cli) -> None:
    ran = windlass(
        "run", "--env", "A=b=c d", "--env", "E=", "--name", "my job", "bash", "-c",
        'echo "$A|$E|$WINDLASS_JOB_NAME"',
    )  # fmt: skip
    assert ran.out == "[0/0] b=c d||my job\n"


def test_failure_prints_a_verdict(windlass: Cli) -> None:
    ran = windlass("run", "work.py::fail", "--procs", "2")
    assert ran.code == 1
    assert ran.out == ""
    verdict = ran.err[ran.err.index("✗") :].splitlines()
    assert verdict[0] == f"✗ job {ran.job_id} failed: user error"
    assert "rank 1 on" in verdict[1]
    assert "raised ValueError: boom" in verdict[1]
    assert verdict[2].split()[0].startswith("work.py:")
    assert verdict[3] == "  the other rank: 1 stopped"
    assert verdict[4] == f"  next: windlass logs {ran.job_id} --rank 1"
    assert "\x1b" not in ran.err
    assert "\x07" not in ran.err


def test_a_quiet_failure_still_has_its_verdict(windlass: Cli) -> None:
    ran = windlass("run", "--quiet", "bash", "-c", "exit 7")
    assert ran.code == 1
    assert ran.err.startswith("✗ job")
    assert "exited with code 7" in ran.err


def test_restart_is_reported(windlass: Cli) -> None:
    ran = windlass("run", "work.py::flaky", "--restarts", "1")
    assert (ran.code, ran.out) == (0, "7\n")
    assert "after 1 restart" in ran.err


def test_json_is_one_document_and_logs_go_to_stderr(windlass: Cli) -> None:
    ran = windlass("run", "work.py::add", "1", "--procs", "2", "--json")
    assert ran.json["phase"] == "succeeded"
    assert ran.json["ref"] == f"local://{ran.json['job_id']}"
    assert ran.json["results"] == [
        {"rank": rank, "state": "returned", "value": 3, "error": None} for rank in (0, 1)
    ]
    assert ran.json["timeline"][0]["name"] == "submitted"
    assert "[0/1] adding on 1" in ran.err


def test_json_of_values_without_a_json_form(windlass: Cli) -> None:
    row = windlass("run", "work.py::odd", "--json", "-q").json["results"][0]
    assert "nan" in row["repr"]
    assert "value" not in row


def test_json_of_a_failure(windlass: Cli) -> None:
    ran = windlass("run", "work.py::fail", "--procs", "2", "--json", "--quiet")
    assert ran.code == 1
    assert ran.json["verdict"]["rank"] == 1
    assert [row["state"] for row in ran.json["results"]] == ["stopped", "raised"]
    assert ran.json["results"][1]["error"]["type"] == "builtins.ValueError"


def test_detach_prints_the_address(windlass: Cli) -> None:
    ran = windlass("run", "work.py::add", "1", "--detach")
    assert ran.out == f"local://{ran.job_id}\n"
    assert f"windlass attach {ran.job_id}" in ran.err
    assert windlass("wait", ran.out.strip()).code == 0
    assert (
        windlass("run", "work.py::add", "1", "--detach", "--json").json["ref"].startswith("local")
    )
    for job in windlass("ls", "--json").json:
        windlass("wait", job["job_id"])


@pytest.mark.parametrize("verb", [["run", "--dry-run"], ["export"]])
@pytest.mark.parametrize("as_json", [True, False])
def test_a_dry_run_starts_nothing(
    windlass: Cli, home: Path, verb: list[str], as_json: bool
) -> None:
    import yaml

    ran = windlass(*verb, "show_args.py", "--nodes=2", *["--json"] * as_json, "--", "it's", "a\nb")
    assert ran.code == 0
    found = ran.json if as_json else list(yaml.safe_load_all(ran.out))
    plan = found[0] if isinstance(found, list) else found
    assert plan["work"] == {"kind": "script", "path": "show_args.py", "args": ["it's", "a\nb"]}
    assert len(plan["nodes"]) == 2
    assert not (home / "jobs").exists()


def test_help_of_a_function(windlass: Cli) -> None:
    ran = windlass("run", "work.py::add", "--help")
    assert ran.code == 0
    assert "usage: windlass run work.py::add --a int [--b int]" in ran.out
    assert "the first one" in ran.out
    assert "--restarts" in ran.out


def test_ctrl_c_cancels_and_reports_it(started: Callable[..., subprocess.Popen[str]]) -> None:
    process = started("run", "work.py::stay", until="up")
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "stopping 1 rank; Ctrl-C again to kill them now" in err
    assert "was cancelled" in err


def test_second_ctrl_c_kills_immediately(started: Callable[..., subprocess.Popen[str]]) -> None:
    process = started("run", "work.py::stubborn", "--grace", "10m", until="up")
    assert process.stderr is not None
    process.send_signal(signal.SIGINT)
    for line in process.stderr:
        if "Ctrl-C again" in line:
            break
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "killing every rank now" in err


def test_closed_output_pipe(started: Callable[..., subprocess.Popen[str]]) -> None:
    process = started("run", "--", "bash", "-c", "while :; do echo line; done", until="line")
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.close()
    err = process.stderr.read()
    assert process.wait(timeout=60) == 1
    assert "Broken" not in err
    assert "Traceback" not in err
    process.stderr.close()
