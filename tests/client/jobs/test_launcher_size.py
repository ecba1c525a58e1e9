"""Sizes in a torchrun line. They apply unless flags repeat them, in which case both must agree."""

from __future__ import annotations

import pytest

from windlass.client.jobs.run import prepare_job
from windlass.errors import SpecError


def size(words: str, **flags):
    plan = prepare_job(["sh", "-c", words], detach=False, flags=flags).plan
    return len(plan.nodes), plan.nodes[0].num_ranks


@pytest.mark.parametrize(
    ("words", "flags", "found"),
    [
        ("torchrun --nnodes=2 --nproc_per_node=4 t.py", {}, (2, 1)),
        ("torchrun --nnodes 2 --nproc-per-node 4 t.py", {"gpus": 4}, (2, 1)),
        ("torchrun --nnodes=1:3 t.py", {}, (3, 1)),
        ("torchrun --nnodes=1:3 t.py", {"nodes": 2}, (2, 1)),
        ("torchrun --nproc_per_node=4 t.py", {"nodes": 2, "procs": 4}, (2, 1)),
        ("torchrun --standalone --nnodes=1 t.py", {"nodes": 2}, (2, 1)),
        ("python t.py", {"gpus": 2}, (1, 2)),
    ],
)
def test_size_of_a_command(words, flags, found):
    assert size(words, **flags) == found


def test_contradiction_is_reported():
    with pytest.raises(SpecError, match=r"has --nnodes=4, but 2 nodes would run it") as caught:
        size("torchrun --nnodes=4 t.py", nodes=2)
    assert caught.value.hint == "remove --nnodes, or use --nodes 4"


ONE = (
    "sh -c exec accelerate launch --multi_gpu --num_processes=2"
    ' --main_process_port="$MASTER_PORT" t.py'
)
MANY = (
    'sh -c exec accelerate launch --main_process_port="$MASTER_PORT" --num_machines=2'
    ' --machine_rank="$NODE_RANK" --main_process_ip="$MASTER_ADDR" --cpu --num_processes=8 t.py'
)


def plan_of(words, **flags):
    return prepare_job(words.split(), detach=False, flags=flags).plan


@pytest.mark.parametrize(
    "words",
    [
        "torchrun main.py",
        "python -m torch.distributed.run main.py",
        "python -u -m torch.distributed.launch main.py",
        "env A=1 torchrun --max-restarts 3 main.py",
    ],
)
@pytest.mark.parametrize("flags", [{"procs": 2}, {"gpus": 2}])
def test_torchrun_is_one_command_a_node(words, flags):
    plan = plan_of(words, nodes=2, **flags)
    assert [node.num_ranks for node in plan.nodes] == [1, 1]
    assert (plan.env["PET_NPROC_PER_NODE"], plan.env["NPROC_PER_NODE"]) == ("2", "2")
    assert "OMP_NUM_THREADS" not in plan.env  # torchrun decides


@pytest.mark.parametrize(
    "words", ["python main.py --launcher torchrun", "python -c 1 torchrun", "echo a", "sh -c 'a"]
)
def test_other_commands_are_one_a_rank(words):
    plan = plan_of(words, nodes=2, procs=2)
    assert [node.num_ranks for node in plan.nodes] == [2, 2]
    assert "PET_NPROC_PER_NODE" not in plan.env


@pytest.mark.parametrize(
    ("words", "flags", "message"),
    [
        ("torchrun --nproc-per-node=4 t.py", {"procs": 2}, "starts 4 processes per node, but 2"),
        ("torchrun --node_rank=0 t.py", {"nodes": 2}, "has node rank 0, but 2 nodes would run it"),
    ],
)
def test_flags_that_cannot_hold_on_every_node_are_refused(words, flags, message):
    with pytest.raises(SpecError, match=message):
        plan_of(words, **flags)


@pytest.fixture
def programs(tmp_path, monkeypatch):
    """Create programs with these names on the PATH."""
    for name in ("accelerate", "deepspeed"):
        (tmp_path / name).write_text("#!/bin/sh\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")


@pytest.mark.parametrize(
    ("words", "flags", "expected_label"),
    [
        ("accelerate launch t.py --lr 1", {}, "accelerate launch t.py --lr 1"),
        (
            "accelerate launch t.py",
            {"procs": 2},
            ONE,
        ),
        (
            "accelerate launch --cpu --num_processes=8 t.py",
            {"nodes": 2},
            MANY,
        ),
        (
            "deepspeed t.py --x",
            {"gpus": 2},
            'sh -c exec deepspeed --num_gpus=2 --master_port="$MASTER_PORT" t.py --x',
        ),
    ],
)
def test_other_launchers_are_recognized_by_their_flags(programs, words, flags, expected_label):
    plan = plan_of(words, **flags)
    assert plan.work.label == expected_label
    assert {node.num_ranks for node in plan.nodes} == {1}


def test_launcher_in_a_shell_command(programs):
    words = ["bash", "-c", "cd x && accelerate launch --cpu t.py"]
    plan = prepare_job(words, detach=False, flags={"procs": 3}).plan
    assert plan.work.argv[2] == (
        'cd x && accelerate launch --num_processes=3 --main_process_port="$MASTER_PORT" --cpu t.py'
    )


def test_deepspeed_on_many_nodes_has_a_hint(programs):
    with pytest.raises(SpecError, match="over SSH") as caught:
        plan_of("deepspeed --master_port 1 t.py --lr 2", nodes=2, procs=4)
    assert caught.value.hint == "run `windlass run --nodes 2 --procs 4 t.py --lr 2`"
