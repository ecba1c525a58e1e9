"""`windlass compute`: real computes on this machine, listed, resized and ended, and calls as jobs."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from cli.process import Ran
from cluster_space import Space
from waits import wait_for

Cli = Callable[..., Ran]

START = """
import sys
import windlass as kt
from work import add, fail, stay

compute = kt.Compute(name="nodes", engine="local", inactivity_ttl="20m")
two = compute.distribute("spmd", workers=2)
kt.fn(add).to(two).deploy()
for word in sys.argv[1:]:
    target = {"add": kt.fn(add), "fail": kt.fn(fail), "stay": kt.fn(stay)}[word]
    print(target.to(two).submit(*([5] if word == "add" else [])).id)
"""


@pytest.fixture
def local(windlass: Cli, project: Path, monkeypatch: pytest.MonkeyPatch) -> Cli:
    """Run `windlass` without a cluster."""
    monkeypatch.setenv("KUBECONFIG", str(project / "none"))
    return windlass


@pytest.fixture
def submit(local: Cli, project: Path) -> Iterator[Callable[..., list[str]]]:
    """Start the compute `nodes` with two nodes. Return a function that submits calls and returns ids."""
    (project / "start.py").write_text(START)

    def run(*words: str) -> list[str]:
        command = [sys.executable, "start.py", *words]
        done = subprocess.run(command, cwd=project, capture_output=True, text=True, timeout=100)
        assert done.returncode == 0, done.stderr
        return done.stdout.split()

    yield run
    local("compute", "rm", "--all", "--yes")


def test_no_computes(local: Cli) -> None:
    for words in (("ls",), ("rm", "--all", "--yes")):
        ran = local("compute", *words)
        assert (ran.code, ran.out) == (0, "")
        assert "no compute is running" in ran.err
    assert local("compute", "ls", "--json").json == []


def test_ls(local: Cli, submit: Callable[..., list[str]]) -> None:
    stay, _ = submit("stay", "stay")
    header, row = local("compute", "ls").out.splitlines()
    assert header.split()[:5] == ["NAME", "ENGINE", "NODES", "STATE", "IDLE"]
    assert row.split()[:6] == ["nodes", "local", "2/2", "at", "work,", "1"]
    (record,) = local("compute", "ls", "--json", "-e", "local").json
    job_id = stay.rpartition(".")[0]
    assert (record["name"], record["job_id"], record["ref"]) == (
        "nodes",
        job_id,
        f"local://{job_id}",
    )
    assert (record["num_here"], record["num_nodes"], record["ttl_s"]) == (2, 2, 1200.0)
    assert (record["state"], record["num_waiting"]) == ("at work", 1)
    assert record["deployed"] == ["add"]
    (job,) = local("ls", "--json").json
    assert (job["job_id"], job["work"], job["phase"]) == (job_id, "compute", "running")


def test_rm_by_name_and_by_id(local: Cli, submit: Callable[..., list[str]]) -> None:
    (call,) = submit("stay")
    job_id = call.rpartition(".")[0]
    wrong = local("compute", "rm", "nodes", "nods")
    assert (wrong.code, wrong.out) == (2, "")
    assert "compute 'nods' not found" in wrong.err
    assert "did you mean nodes?" in wrong.err
    refused = local("compute", "rm", "--all")
    assert refused.code == 2
    assert f"this would end nodes (local://{job_id})" in refused.err
    assert local("compute", "rm", job_id).out.split() == [job_id]
    assert local("compute", "ls", "--json").json == []
    submit()
    (record,) = local("compute", "ls", "--json").json
    assert local("compute", "rm", "nodes", "--json").json == [record["job_id"]]


def test_scale(local: Cli, submit: Callable[..., list[str]]) -> None:
    submit()
    more = local("compute", "scale", "nodes", "3")
    assert more.code == 0, more.err
    assert "2 -> 3 nodes; node 0 stays" in more.err

    def here() -> int:
        (record,) = local("compute", "ls", "--json").json
        return int(record["num_here"])

    wait_for(lambda: here() == 3, "the third node is here")
    assert "has 3 nodes already" in local("compute", "scale", "nodes", "3").err
    fewer = local("compute", "scale", "nodes", "1", "--json").json
    assert (fewer["before"], fewer["num_nodes"]) == (3, 1)
    wait_for(lambda: here() == 1, "the others are gone")
    (call,) = submit("add")  # the call needs two nodes, so the compute grows back
    assert local("wait", call).code == 0
    submit("stay")
    refused = local("compute", "scale", "nodes", "1")
    assert refused.code == 2
    assert "its running calls would lose nodes" in refused.err


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("scale", "nodes", "0"), "0 is not in the range"),
        (("scale", "nodes"), "N is missing"),
        (("scale", "nodes", "2"), "compute 'nodes' not found"),
        (("rm",), "no compute given"),
        (("rm", "one", "--all"), "no compute given"),
        (("lst",), "did you mean `windlass compute ls`?"),
    ],
)
def test_mistakes_are_reported(local: Cli, words: tuple[str, ...], expected: str) -> None:
    ran = local("compute", *words)
    assert (ran.code, ran.out) == (2, "")
    assert expected in ran.err


def test_without_a_verb_it_shows_its_help(local: Cli) -> None:
    ran = local("compute")
    assert ran.code == 0
    for verb in ("ls", "calls", "rm", "scale"):
        assert f"\n  {verb} " in ran.out


@pytest.mark.long
def test_every_verb_accepts_a_call(local: Cli, submit: Callable[..., list[str]]) -> None:
    (call,) = submit("add")
    assert local("wait", call).code == 0
    found = local("status", call, "--json").json
    assert (found["job_id"], found["phase"], found["num_ranks"]) == (call, "succeeded", 2)
    assert [rank["state"] for rank in found["ranks"]] == ["returned", "returned"]
    assert local("result", call).out.splitlines() == ["rank 0: 7", "rank 1: 7"]
    rows = local("result", call, "--json").json["results"]
    assert [(row["state"], row["value"]) for row in rows] == [("returned", 7)] * 2
    lines = sorted(local("logs", call).out.splitlines())
    assert lines == [
        "[0/0] adding on 0",
        "[0/0] to stderr",
        "[1/1] adding on 1",
        "[1/1] to stderr",
    ]
    assert sorted(local("attach", call).out.splitlines())[0] == "[0/0] adding on 0"
    assert local("logs", f"nodes.{call.rpartition('.')[2]}", "--rank", "1").out.count("\n") == 2
    assert "succeeded" in local("why", call).out
    assert local("compute", "calls", "nodes").out.splitlines()[1].split() == [
        call,
        "add",
        "returned",
    ]
    assert local("compute", "calls", "nodes", "--json").json[0]["id"] == call


def test_a_call_that_failed(local: Cli, submit: Callable[..., list[str]]) -> None:
    (call,) = submit("fail")
    ended = local("wait", call)
    assert ended.code == 1
    assert "rank 1 on nodes-node-1 raised ValueError: boom" in ended.err
    assert f"next: windlass logs {call} --rank 1" in ended.err
    shown = local("result", call)
    assert shown.code == 1
    first, second = shown.out.splitlines()
    assert first == "rank 0: no result (stopped)"
    assert second.startswith("rank 1: raised ValueError: boom")
    assert "ValueError: boom" in local("logs", call, "--rank", "1").out


def test_a_call_is_cancelled_and_its_compute_stays(
    local: Cli, submit: Callable[..., list[str]]
) -> None:
    first, second = submit("stay", "stay")
    queued = local("status", second)
    assert "pending (Queued: 1 call before it)" in queued.out
    assert "ranks    2" in queued.out
    assert local("cancel", second, first).code == 0
    phases = [local("status", call, "--json").json["phase"] for call in (first, second)]
    assert phases == ["cancelled", "cancelled"]
    (again,) = submit("add")
    assert local("wait", again).code == 0


def test_what_is_deployed_is_called_by_name(local: Cli, submit: Callable[..., list[str]]) -> None:
    submit()
    done = local("call", "add", "1", "--b", "40")
    assert done.code == 0, done.err
    assert done.out.splitlines()[-2:] == ["rank 0: 41", "rank 1: 41"]
    assert "[1/1] adding on 1" in done.out
    rows = local("call", "--json", "add", "1").json
    assert [row["value"] for row in rows] == [3, 3]
    failed = local("call", "add", "one")
    assert failed.code == 1
    assert "TypeError" in failed.err
    unknown = local("call", "ad", "1")
    assert (unknown.code, unknown.out) == (2, "")
    assert "did you mean add?" in unknown.err


def test_compute_describes_itself(local: Cli, submit: Callable[..., list[str]]) -> None:
    (call,) = submit("add")
    assert local("wait", call).code == 0
    why = local("why", "nodes").out
    assert "waiting for calls" in why
    assert "importing" not in why
    row = local("ls").out.splitlines()[1]
    assert row.split()[1:5] == ["nodes", "running", "2", "nodes"]
    lines = sorted(set(local("logs", "nodes").out.splitlines()))
    assert {"[0/0] adding on 0", "[1/1] adding on 1"} <= set(lines)


@pytest.mark.cluster
@pytest.mark.timeout(300)
def test_the_same_on_a_cluster(
    windlass: Cli, project: Path, space: Space, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in space.settings.items():
        monkeypatch.setenv(name, value)
    on = ("-e", "kubernetes")
    (project / "start.py").write_text(START.replace('engine="local", ', ""))
    command = [sys.executable, "start.py", "add"]
    done = subprocess.run(command, cwd=project, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr
    call = done.stdout.strip()
    try:
        assert windlass("wait", call, *on).code == 0
        assert windlass("result", call, *on).out.splitlines() == ["rank 0: 7", "rank 1: 7"]
        assert "[1/1] adding on 1" in windlass("logs", call, *on).out
        assert windlass("call", *on, "add", "1").out.splitlines()[-1] == "rank 1: 3"
        assert "2 -> 1 nodes; node 0 stays" in windlass("compute", "scale", "nodes", "1", *on).err
        (found,) = [
            one for one in windlass("compute", "ls", "--json", *on).json if one["name"] == "nodes"
        ]
        assert (found["engine"], found["num_nodes"]) == ("kubernetes", 1)
        assert found["deployed"] == ["add"]
    finally:
        gone = windlass("compute", "rm", "nodes", "--json", *on)
    assert gone.json == [call.rpartition(".")[0]]
