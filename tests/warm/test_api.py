"""Snippets of the API as users write them.

Their requests are adapted to the test bed. A cluster of two machines pretends to have 16 GPUs, and does not
have four times 512Gi of memory.
"""

from __future__ import annotations

import inspect

import pytest
import warm_tasks as tasks

import windlass as kt
from windlass.client.compute.calls.callable_work import REMOTE_NAMES
from windlass.client.compute.calls.remote import Remote
from windlass.client.compute.deploy.deployment import deploy

TRAIN = """
import os

def train_fn():
    import torch
    import torch.distributed as dist

    dist.init_process_group("gloo")
    total = torch.ones(1)
    dist.all_reduce(total)
    dist.destroy_process_group()
    return int(os.environ["RANK"]), int(total)
"""


@pytest.fixture
def train_fn(project):
    project.write("{stem}.py", TRAIN)
    return project.load("{stem}").train_fn


@pytest.fixture
def tear_down_later(on):
    """Yield a function that registers a remote for teardown at the end."""
    made = []
    yield made.append
    for remote in made:
        remote.teardown()


@pytest.mark.crowd  # 32 ranks with torch on one machine
@pytest.mark.local_only("two machines have no 2 TiB of memory")
def test_first_snippet(on, train_fn, tear_down_later):
    image = kt.images.pytorch("24.08-py3")
    compute = kt.Compute(gpus=8, memory="512Gi", image=image, pretend_gpus=True)
    remote_train = kt.fn(train_fn).to(compute).distribute(framework="pytorch", workers=4)
    tear_down_later(remote_train)
    results = remote_train()
    assert results == [(rank, 32) for rank in range(32)]


@pytest.mark.cluster_only("with the memory and the GPUs of the testbed")
def test_first_snippet_on_pods(on, train_fn, tear_down_later):
    compute = kt.Compute(gpus=8, memory="2Gi", image=kt.images.pytorch("24.08-py3"))
    remote_train = kt.fn(train_fn).to(compute).distribute(framework="pytorch", workers=2)
    tear_down_later(remote_train)
    results = remote_train()
    assert results == [(rank, 16) for rank in range(16)]


def test_pod_ips(warm, project):
    project.write(
        "{stem}.py",
        """
        from windlass.distributed import pod_ips

        def find():
            ips = pod_ips()
            assert ips == pod_ips(quorum_workers=2, quorum_timeout=60)
            return ips
        """,
    )
    remote = kt.fn(project.load("{stem}").find).to(warm).distribute("spmd", workers=2)
    first, second = remote()
    assert first == second
    assert len(first) == 2


@pytest.mark.long
def test_volume_on_a_distributed_compute(on, tear_down_later):
    where = {} if on.space is None else {"storage_class": "shared-disk"}
    vol = kt.Volume(
        name="shared-data", size="1Gi", mount_path="/data", access_mode="ReadWriteMany", **where
    )
    compute = kt.Compute(name="t-volumes", volumes=[vol]).distribute(framework="spmd", workers=2)
    remote = kt.fn(tasks.whoami).to(compute)
    tear_down_later(remote)
    assert [each["rank"] for each in remote()] == [0, 1]


def test_decorated(on, project, tear_down_later):
    project.write(
        "{stem}.py",
        """
        import os
        import windlass as kt

        @kt.compute(name="t-decorated", inactivity_ttl=120)
        @kt.distribute(framework="pytorch", workers=2)
        def train():
            return int(os.environ["RANK"])
        """,
    )
    train = project.load("{stem}").train
    tear_down_later(train.deploy())
    assert train() == [0, 1]
    assert kt.get("train")() == [0, 1]


def check_own_methods(remote):
    assert remote.name() == "its own name"
    assert remote.submit("a form") == "submitted a form"
    assert remote.options() == ["a", "b"]
    assert remote.deploy(where="there") == "deployed to there"
    assert remote.to("cuda") == "on cuda"
    assert remote.distribute(8) == 4
    assert remote.compute() == 42
    assert (remote.teardown(), remote.acall(), remote.rebuild()) == (
        *("torn down", "called", "rebuilt"),
    )
    assert remote.submit.submit("later").result() == "submitted later"


@pytest.mark.parametrize("target", [tasks.Awkward, tasks.StillAwkward])
def test_class_methods_shadow_remote_methods(warm, target):
    remote = kt.cls(target).options(timeout=100).to(warm)
    check_own_methods(remote)
    check_own_methods(remote.to(warm))


@pytest.mark.long
def test_deployed_class_methods_shadow_remote_methods(on, make, project):
    compute = make()
    decorated = f"@kt.compute(name={compute.name!r}, inactivity_ttl=240)"
    source = f"import windlass as kt\n{decorated}\n{inspect.getsource(tasks.Awkward)}"
    project.write("{stem}.py", source.replace("Awkward", "Own"))
    (made,) = deploy([project.load("{stem}").Own])
    assert made.kind == "class"
    assert made.name in on.info(compute.up())["record"]
    check_own_methods(kt.get("Own"))


@pytest.mark.long
def test_callable_objects_are_called_by_their_deployed_name(on, make, project):
    compute = make()
    project.write(
        "{stem}.py",
        f"""
        import windlass as kt

        @kt.compute(name={compute.name!r}, inactivity_ttl=240)
        class Doubler:
            def __call__(self, number):
                return 2 * number

        @kt.compute(name={compute.name!r}, inactivity_ttl=240)
        class Silent:
            pass
        """,
    )
    module = project.load("{stem}")
    assert [made.kind for made in deploy([module.Doubler, module.Silent])] == ["class"] * 2
    assert on.info(compute.up())["record"].keys() == {"Doubler", "Silent"}
    assert kt.get("Doubler")(21) == 42
    with pytest.raises(kt.SpecError, match="method"):
        kt.get("Silent")(21)


def test_remote_methods_work_if_the_class_has_none_of_that_name(warm):
    counter = kt.cls(tasks.Counter, name="ours").to(warm)
    assert counter.name == "ours"
    assert counter.options(timeout=50).add(2) == 2
    assert counter.add.submit(1).result() == 3


def test_remote_names_lists_every_public_name():
    assert {name for name in vars(Remote) if not name.startswith("_")} == set(REMOTE_NAMES)
