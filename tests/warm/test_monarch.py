"""Monarch on the nodes of computes and jobs: meshes for functions, workers for all calls, and losses.

Skipped if Monarch is not installed.
"""

from __future__ import annotations

import os
import re
import signal
from pathlib import Path
from typing import Any

import pytest
from waits import find_leftovers, wait_for

import windlass as kt

pytest.importorskip("monarch.actor", reason="Monarch is not installed: pip install torchmonarch")
import monarch_tasks

pytestmark = [pytest.mark.local_only, pytest.mark.timeout(900)]
ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def compute(on):
    yield on.make()
    on.clean()


def distribute(compute: kt.Compute, function: Any) -> kt.Remote:
    return kt.fn(function).to(compute).distribute(framework="monarch", workers=2)


def test_function_gets_a_mesh_of_all_nodes_and_returns_one_value(compute):
    result = distribute(compute, monarch_tasks.greet)("ab", times=2)
    assert result == {"sizes": {"hosts": 2}, "said": [f"abab {rank}" for rank in range(4)]}


def test_output_of_actors_is_in_the_log_by_node(compute, tmp_path):
    """Lines of two actors of a node may be joined, because Python writes the newline separately."""
    flag = tmp_path / "seen"
    call = distribute(compute, monarch_tasks.greet_until).submit("ab", str(flag))

    def read_greetings() -> set[tuple[int, str]]:
        return {(line.node, line.text) for line in call.logs() if "greets" in line.text}

    wait_for(lambda: bool(read_greetings()), "an actor's line is in the log", 200.0)
    flag.touch()
    assert call.result(timeout_s=120) == 4
    greetings = read_greetings()
    ranks_by_node = [
        (node, int(rank)) for node, text in greetings for rank in re.findall(r"r (\d)", text)
    ]
    assert ranks_by_node
    assert all(node == rank // 2 for node, rank in ranks_by_node)


@pytest.mark.long
def test_calls_share_private_workers(compute, home):
    first, second = (distribute(compute, monarch_tasks.look)() for _ in range(2))
    assert first["hosts"] == second["hosts"]
    assert first["workers"] == second["workers"]
    assert first["rank"] != second["rank"]
    assert first["folders"] == {os.getcwd()}
    for host in first["hosts"]:
        folder = Path(host.removeprefix("ipc://")).parent
        assert (folder.stat().st_mode & 0o777, folder.stat().st_uid) == (0o700, os.getuid())


def test_actors_of_a_call_end_with_it(compute, home):
    distribute(compute, monarch_tasks.greet)("x")
    wait_for(lambda: find_actors(home) == [], "its actors have exited", 60.0)


def find_actors(home: Path) -> list[int]:
    lines = [line for line in find_leftovers(home) if "bootstrap_main" in line]
    return [int(line.partition(":")[0]) for line in lines]


@pytest.mark.long
def test_edited_code_runs(compute, project):
    source = """
        from monarch.actor import Actor, endpoint
        class Own(Actor):
            @endpoint
            def tell(self):
                return VALUE
        def ask(mesh):
            own = mesh.spawn_procs({"gpus": 1}).spawn("own", Own)
            return [one for _, one in own.tell.call().get(timeout=60).items()]
    """
    for value in (1, 2):
        project.write("{stem}.py", source.replace("VALUE", str(value)))
        remote = distribute(compute, project.load("{stem}").ask)
        assert remote() == [value] * 2


def test_an_object_keeps_its_actors_between_calls(compute):
    keeper = kt.cls(monarch_tasks.Keeper).to(compute).distribute(framework="monarch", workers=2)
    assert [keeper.greet("a"), keeper.greet("b")] == ["a 0", "b 0"]


def test_exception_of_an_actor_is_raised(compute):
    with pytest.raises(Exception, match="an actor's own error"):
        distribute(compute, monarch_tasks.raise_in_actor)()


@pytest.mark.long
def test_actor_that_fails_unhandled_is_named(compute):
    with pytest.raises(
        RuntimeError, match=r"a Monarch actor failed.*\n.*exited with non-zero code 3"
    ):
        distribute(compute, monarch_tasks.lose_actor)()


def test_call_without_a_required_argument_is_refused(compute):
    with pytest.raises(kt.SpecError, match="missing a required argument: 'name'"):
        distribute(compute, monarch_tasks.greet)()


@pytest.mark.long
def test_lost_worker_fails_the_call_and_is_replaced(compute, tmp_path):
    before = distribute(compute, monarch_tasks.look)()
    call = distribute(compute, monarch_tasks.wait_until_killed).submit(str(tmp_path / "flag"))
    wait_for((tmp_path / "flag").exists, "its actor is running", 200.0)
    os.kill(before["workers"][1], signal.SIGKILL)
    verdict = call.wait(60).verdict
    assert (verdict.kind.value, verdict.node in (0, 1)) == ("killed by a signal", True)
    assert verdict.message.startswith("Monarch's worker on ")
    after = distribute(compute, monarch_tasks.look)()
    assert not set(after["workers"]) & set(before["workers"])


@pytest.mark.long
def test_job_with_a_lost_worker_restarts_with_a_new_mesh(home, tmp_path):
    before = find_actors(home)
    flag = tmp_path / "flag"
    job = kt.submit(
        *(monarch_tasks.wait_until_killed, (), {"flag": str(flag)}),
        framework="monarch",
        nodes=2,
        grace_s=1,
        restarts=1,
    )
    wait_for(flag.exists, "its actor is running", 200.0)
    actor = next(pid for pid in find_actors(home) if pid not in before)
    flag.unlink()
    os.kill(read_parent(actor), signal.SIGKILL)
    wait_for(flag.exists, "its actor is running on another mesh", 200.0)
    status = job.status()
    assert (status.attempt, [one.kind.value for one in status.history]) == (
        1,
        ["killed by a signal"],
    )
    job.cancel()
    job.wait(60)


def read_parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


@pytest.mark.long
@pytest.mark.parametrize("index", [0, 1])
def test_monarch_processes_die_with_a_killed_agent(home, tmp_path, index):
    before = set(find_actors(home))
    job = kt.submit(
        *(monarch_tasks.wait_until_killed, (), {"flag": str(tmp_path / "flag")}),
        framework="monarch",
        nodes=2,
        grace_s=1,
        node_restarts=0,
    )
    wait_for((tmp_path / "flag").exists, "it runs", 200.0)
    os.kill(job.status().nodes[index].pid, signal.SIGKILL)
    job.wait(60)
    wait_for(lambda: set(find_actors(home)) <= before, "all actors have exited", 60.0)


@pytest.mark.long
def test_script_of_the_guide_prints_on_each_host():
    script = str(ROOT / "examples/kubernetes_ddp.py")
    words = ["--num_hosts", "2", "--gpus_per_host", "1"]
    job = kt.submit(script, words, framework="monarch", nodes=2)
    job.wait(200)
    lines = {(line.node, line.text) for line in job.logs()}
    for rank in (0, 1):
        for text in (
            "Initializing torch distributed",
            "Finished initializing torch distributed",
            "Running basic DDP example",
            "local_rank=0",
            "Finished running basic DDP example",
        ):
            assert (rank, f"self.rank={rank} {text}") in lines
    assert (0, "2 ranks, weights agree") in lines
