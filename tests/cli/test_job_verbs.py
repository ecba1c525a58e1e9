"""Verbs that inspect and end jobs."""

from __future__ import annotations

import json
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from cli.process import Ran
from waits import wait_for

Cli = Callable[..., Ran]


@pytest.fixture
def ended(windlass: Cli) -> str:
    return windlass("run", "work.py::add", "1", "--procs", "2", "--name", "adding").job_id


@pytest.fixture
def failed(windlass: Cli) -> str:
    return windlass("run", "work.py::fail", "--procs", "2").job_id


def test_ls(windlass: Cli) -> None:
    empty = windlass("ls")
    assert (empty.code, empty.out) == (0, "")
    assert "no jobs here yet" in empty.err
    job_id = windlass("run", "work.py::steps", "--name", "tidy \x1b[2J").job_id
    header, row = windlass("ls").out.splitlines()
    assert header.split() == ["ID", "NAME", "PHASE", "RANKS", "PROGRESS", "AGE", "WORK"]
    assert row.split()[:6] == [job_id, "tidy", "succeeded", "1", "3/3", "100%"]
    (record,) = windlass("ls", "--json").json
    assert record["ref"] == f"local://{job_id}"
    assert record["phase"] == "succeeded"
    assert record["progress"]["metrics"] == {"loss": 1 / 3}


def test_status(windlass: Cli, ended: str) -> None:
    shown = windlass("status", ended[:-1])
    pairs = dict(line.split(None, 1) for line in shown.out.split("\n\n")[0].splitlines())
    assert pairs["phase"] == "succeeded (AllRanksReturned: all 2 ranks returned)"
    assert pairs["ranks"] == "2: 2 returned"
    assert pairs["name"] == "adding"
    assert "nodes joined" in shown.out
    found = windlass("status", "--json", "adding").json
    assert (found["job_id"], found["ref"]) == (ended, f"local://{ended}")
    assert found["phase"] == "succeeded"


def test_status_of_a_failure(windlass: Cli, failed: str) -> None:
    ran = windlass("status", failed)
    assert ran.code == 0
    assert f"✗ job {failed} failed: user error" in ran.out
    assert "\x1b" not in ran.out


def test_logs(windlass: Cli, ended: str) -> None:
    lines = windlass("logs", ended).out.splitlines()
    assert sorted(lines) == [
        "[0/0] adding on 0",
        "[0/0] to stderr",
        "[0/1] adding on 1",
        "[0/1] to stderr",
    ]
    assert windlass("logs", ended, "--rank", "1", "--grep", "add.*1$").out == "adding on 1\n"
    records = [json.loads(line) for line in windlass("logs", ended, "--json").out.splitlines()]
    assert {record["stream"] for record in records} == {"stdout", "stderr"}
    assert windlass("logs", ended, "--since", "1h", "--node", "0").out.count("\n") == 4
    assert windlass("logs", ended, "--since", "2h", "--attempt", "0", "-f").out.count("\n") == 4
    nothing = windlass("logs", ended, "--since", "2999-01-01")
    assert (nothing.code, nothing.out) == (0, "")
    assert "no output of" in nothing.err


def test_logs_into_a_closed_pipe(
    windlass: Cli, started: Callable[..., subprocess.Popen[str]]
) -> None:
    ran = windlass("run", "--quiet", "--json", "--", "bash", "-c", "seq 1 50000")
    process = started("logs", ran.json["job_id"], until="[0/0] 3")
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.close()
    assert process.wait(timeout=60) == 0
    assert process.stderr.read() == ""
    process.stderr.close()


def test_result(windlass: Cli, ended: str) -> None:
    assert windlass("result", ended).out == "rank 0: 3\nrank 1: 3\n"
    assert windlass("result", ended, "--rank", "1").out == "3\n"
    rows = windlass("result", ended, "--json").json["results"]
    assert rows[1] == {"rank": 1, "state": "returned", "value": 3, "error": None}
    assert windlass("result", ended, "--json", "--rank", "1").json["results"] == [rows[1]]


@pytest.mark.parametrize("words", [("work.py::add", "--a", "1"), ("work.py::fail",)])
def test_run_and_result_print_one_document(windlass: Cli, words: tuple[str, ...]) -> None:
    ran = windlass("run", "--quiet", "--json", "--procs", "2", *words).json
    assert windlass("result", ran["job_id"], "--json").json == ran


def test_missing_result_is_named(windlass: Cli, ended: str, home: Path) -> None:
    (home / "jobs" / ended / "attempt-0" / "rank-1.result").unlink()
    ran = windlass("result", ended)
    first, second = ran.out.splitlines()
    assert (ran.code, first) == (3, "rank 0: 3")
    assert second.startswith("rank 1: the result of rank 1 is missing: ")
    assert "the result of rank 1 is missing" in ran.err
    assert windlass("result", ended, "--rank", "0").code == 0
    assert windlass("result", ended, "--json").json["results"][1]["state"] == "missing"


def test_job_name_with_a_dot_is_not_a_call(windlass: Cli) -> None:
    """The name must not be read as a call of the compute `exp-v1`, which could also exist."""
    for name in ("exp-v1.2", "exp-v1.abcdefghjk", "v.1.2.3"):
        job_id = windlass("run", "work.py::add", "1", "--name", name).job_id
        for verb in ("status", "result", "why", "logs"):
            ran = windlass(verb, name)
            assert ran.code == 0, ran.err
        assert windlass("status", name, "--json").json["job_id"] == job_id
    missing = windlass("status", "exp-v1.9")
    assert missing.code == 2
    assert "job 'exp-v1.9' not found" in missing.err


def test_result_of_a_failure(windlass: Cli, failed: str) -> None:
    ran = windlass("result", failed)
    assert ran.code == 1
    first, second = ran.out.splitlines()
    assert first == "rank 0: no result (stopped)"
    assert second.startswith("rank 1: raised ValueError: boom")
    full = windlass("result", failed, "--rank", "1")
    assert full.out.startswith("Traceback (most recent call last):")
    assert "\x1b" not in full.out
    rows = windlass("result", failed, "--json").json["results"]
    assert [row["state"] for row in rows] == ["stopped", "raised"]


def test_wait_exits_with_the_code_of_the_job(windlass: Cli, ended: str, failed: str) -> None:
    assert windlass("wait", ended).code == 0
    ran = windlass("wait", failed, "--json")
    assert ran.code == 1
    assert ran.json["phase"] == "failed"
    assert "✗ job" in ran.err


def test_a_running_job_and_cancel(windlass: Cli, running: Callable[..., str]) -> None:
    job_id = running("stay", "--procs", "2")
    assert windlass("status", job_id, "--json").json["phase"] == "running"
    waited = windlass("wait", job_id, "--timeout", "0.1")
    assert waited.code == 3
    assert "is still running" in waited.err
    early = windlass("result", job_id)
    assert early.code == 3
    assert f"windlass wait {job_id}" in early.err
    refused = windlass("rm", job_id)
    assert refused.code == 2
    assert f"{job_id} is still running" in refused.err
    assert f"windlass cancel {job_id}" in refused.err
    unknown = windlass("cancel", job_id, "absent")
    assert unknown.code == 2
    assert windlass("status", job_id, "--json").json["phase"] == "running"
    ended = windlass("cancel", job_id, "--json")
    assert (ended.code, ended.json) == (0, [{"job_id": job_id, "phase": "cancelled"}])
    again = windlass("cancel", job_id)
    assert again.code == 0
    assert f"{job_id} is already cancelled" in again.err
    assert windlass("wait", job_id).code == 1


def test_cancel_now_needs_no_confirmation(windlass: Cli, running: Callable[..., str]) -> None:
    job_id = running("stubborn", "--grace", "10m")
    assert windlass("cancel", "--now", job_id).code == 0


def test_rm(windlass: Cli, home: Path, ended: str) -> None:
    gone = windlass("rm", ended, ended)
    assert (gone.code, gone.out) == (0, f"{ended}\n")
    assert not (home / "jobs" / ended).exists()
    windlass("run", "--", "true")
    assert len(windlass("rm", "--ended", "--json").json) == 1
    assert windlass("rm", "--ended").out == ""
    assert windlass("rm").code == 2


def test_attach_shows_earlier_lines_and_ctrl_c_detaches(
    windlass: Cli,
    running: Callable[..., str],
    started: Callable[..., subprocess.Popen[str]],
) -> None:
    job_id = running()
    process = started("attach", job_id, until="[0/0] up")
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert f"left {job_id}; it keeps running" in err
    assert windlass("status", job_id, "--json").json["phase"] == "running"
    watching = started("attach", job_id, until="[0/0] up")
    assert windlass("cancel", job_id).code == 0
    _, err = watching.communicate(timeout=60)
    assert watching.returncode == 1
    assert f"✗ job {job_id} was cancelled" in err


def test_detaching_does_not_end_the_job(
    windlass: Cli, started: Callable[..., subprocess.Popen[str]]
) -> None:
    owner = started("run", "work.py::stay", until="up")
    (job,) = windlass("ls", "--json").json
    guest = started("attach", job["job_id"], until="up")
    guest.send_signal(signal.SIGINT)
    _, err = guest.communicate(timeout=60)
    assert "it keeps running while its `windlass run` does" in err
    assert owner.poll() is None
    owner.send_signal(signal.SIGINT)
    owner.communicate(timeout=60)
    wait_for(lambda: owner.returncode == 130, "the owner handles its own Ctrl-C")


def test_attach_to_an_ended_job(windlass: Cli, ended: str) -> None:
    ran = windlass("attach", ended)
    assert ran.code == 0
    assert "[0/1] adding on 1" in ran.out


def test_an_unknown_job_s_hint_has_names_of_jobs(windlass: Cli) -> None:
    windlass("run", "work.py::add", "1", "--name", "nightly-evaluation", "--quiet")
    ran = windlass("status", "nightly-evalaution")
    assert ran.code != 0
    assert "did you mean nightly-evaluation" in ran.err
