"""Checkpoints loaded by more ranks, by fewer ranks and by one: 2 -> 4 -> 1, with DDP and FSDP2."""

from __future__ import annotations

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

import windlass as wl
from windlass.train.checkpoint.checkpoints import Checkpoints


def make_model(seed):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(6, 10), nn.Tanh(), nn.Linear(10, 3, bias=False))


def make_optimizer(model):
    return torch.optim.AdamW(model.parameters(), lr=0.01)


def work(*, root, load_from=None, load=("ddp", "fsdp")):
    """Make or load both kinds of model, train and save. Return the full tensors before and after."""
    import torch
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor import DTensor

    from windlass.train.checkpoint.checkpoints import Checkpoints
    from windlass.train.checkpoint.hf_export import export_hf
    from windlass.train.parallel.context import get_context

    context = get_context()

    def wrap(kind, seed):
        model = make_model(seed)
        if kind == "ddp":
            return nn.parallel.DistributedDataParallel(model)
        for layer in (model[0], model[2]):
            fully_shard(layer)
        return fully_shard(model)

    def full(tensor):
        return (tensor.full_tensor() if isinstance(tensor, DTensor) else tensor).detach().clone()

    def read(model, optimizer):
        return [
            [full(parameter), *(full(value) for value in optimizer.state[parameter].values())]
            for parameter in model.parameters()
        ]

    results = {}
    for kind, loaded_kind in zip(("ddp", "fsdp"), load, strict=True):
        model = wrap(kind, seed=0 if load_from is None else 1)
        optimizer = make_optimizer(model)
        state = {"model": model, "optimizer": optimizer}
        loaded = None
        if load_from is not None:
            before = Checkpoints(f"{load_from}/{loaded_kind}", is_async=False)
            loaded = before.load(state)
            results[f"{kind} loaded"] = read(model, optimizer)
            results[f"{kind} rng"] = loaded.is_rng_restored
        for _ in range(2):
            optimizer.zero_grad()
            model(torch.ones(4, 6)).square().mean().backward()
            optimizer.step()
        checkpoints = Checkpoints(f"{root}/{kind}", is_async=kind == "fsdp" and load_from is None)
        checkpoints.save(state, step=2, facts={"seed": 0})
        checkpoints.wait()
        checkpoints.close()
        results[kind] = read(model, optimizer)
        export_hf(model, f"{root}/{kind}-hf", config={})
    context.barrier()
    return results


def same(one, other):
    return all(
        torch.equal(a, b)
        for ours, theirs in zip(one, other, strict=True)
        for a, b in zip(ours, theirs, strict=True)
    )


@pytest.mark.long
@pytest.mark.timeout(600)
def test_two_ranks_then_four_then_one(home, tmp_path, alone):
    two = wl.run(work, kwargs={"root": str(tmp_path / "two")}, nodes=1, procs=2)
    again = wl.run(
        work,
        kwargs={"root": str(tmp_path / "again"), "load_from": str(tmp_path / "two")},
        nodes=1,
        procs=2,
    )
    four = wl.run(
        work,
        kwargs={
            "root": str(tmp_path / "four"),
            "load_from": str(tmp_path / "two"),
            "load": ("fsdp", "ddp"),  # each loads what the other kind saved
        },
        nodes=2,
        procs=2,
    )
    for kind, other in (("ddp", "fsdp"), ("fsdp", "ddp")):
        assert same(again[0][f"{kind} loaded"], two[0][kind])
        assert all(result[f"{kind} rng"] for result in again)
        assert all(same(result[f"{kind} loaded"], two[0][other]) for result in four)
        assert not any(result[f"{kind} rng"] for result in four)
        for rank in range(4):
            assert (tmp_path / f"four/{kind}/step-2/rank-{rank}/0.distcp").stat().st_size
        model = make_model(seed=1)
        optimizer = make_optimizer(model)
        loaded = Checkpoints(tmp_path / f"four/{kind}", context=alone).load(
            {"model": model, "optimizer": optimizer}
        )
        assert loaded.world_size == 4
        plain = [
            [parameter.detach(), *optimizer.state[parameter].values()]
            for parameter in model.parameters()
        ]
        assert same(plain, four[0][kind])
        exported = load_file(tmp_path / f"four/{kind}-hf/model.safetensors")
        assert all(torch.equal(exported[name], value) for name, value in model.state_dict().items())


def save_with_a_failing_rank(*, root):
    import pytest

    from windlass.errors import EngineError, SpecError
    from windlass.train.checkpoint.checkpoints import Checkpoints
    from windlass.train.parallel.context import get_context

    context = get_context()
    checkpoints = Checkpoints(root, is_async=False, timeout_s=60)
    state = {"model": make_model(0)}
    checkpoints.save(state, step=1, facts={})

    # If the share of one rank fails, no rank reports success, and earlier checkpoints stay.
    if context.rank == 1:
        checkpoints._storage.root = "/proc/nowhere"
    with pytest.raises(EngineError, match="a checkpoint was not saved: step-2"):
        checkpoints.save(state, step=2, facts={}, timeout_s=2)
    if context.rank == 1:
        checkpoints._storage.root = root
    steps = [checkpoints.load(state).step]

    # If one rank has another model, every rank refuses the checkpoint.
    other = state if context.rank == 0 else {"model": nn.Linear(2, 2)}
    with pytest.raises(SpecError, match=r"no checkpoint in .* can be used"):
        checkpoints.load(other)

    # Ranks at different steps are reported.
    with pytest.raises(SpecError, match="saves step"):
        checkpoints.save(state, step=3 + context.rank, facts={})
    return steps


@pytest.mark.long
@pytest.mark.timeout(600)
def test_all_ranks_decide_alike(home, tmp_path):
    assert wl.run(save_with_a_failing_rank, kwargs={"root": str(tmp_path)}, nodes=1, procs=2) == [
        [1],
        [1],
    ]
