"""Volumes: refusals with reasons, claims that are created, found or different, and local folders."""

from __future__ import annotations

import re
import secrets

import pytest

import windlass as wl
from windlass.distributed import volume_path
from windlass.kube.objects.kinds import PVCS
from windlass.spec.storage import Claim


def make(**given):
    return wl.Volume(**{"name": "data", "size": "1Gi", "mount_path": "/data", **given})


def test_a_volume_as_users_write_it():
    vol = wl.Volume(
        name="shared-data",
        size="1Ti",
        mount_path="/data",
        access_mode="ReadWriteMany",
        storage_class="juicefs-sc",
    )
    assert vol.as_claim() == Claim(claim="shared-data", path="/data")
    assert vol.make_claim_manifest() == {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {
            "name": "shared-data",
            "labels": {"app.kubernetes.io/managed-by": "windlass"},
        },
        "spec": {
            "accessModes": ["ReadWriteMany"],
            "resources": {"requests": {"storage": "1Ti"}},
            "storageClassName": "juicefs-sc",
        },
    }


@pytest.mark.parametrize(
    ("given", "mode"),
    [("RWX", "ReadWriteMany"), ("rwo", "ReadWriteOnce"), ("readonlymany", "ReadOnlyMany")],
)
def test_short_access_modes(given, mode):
    assert make(access_mode=given).access_mode == mode


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"name": "A_b"}, "invalid volume name"),
        ({"name": ""}, "invalid volume name"),
        ({"size": 100}, 'size="100Gi"'),
        ({"size": "100"}, "is less than 1 MiB"),
        ({"size": "big"}, "the size of volume data must be an amount such as 512Gi"),
        ({"mount_path": ""}, "volume data needs a mount_path"),
        ({"mount_path": "data"}, "mount_path of volume data: 'data' is not an absolute path"),
        ({"mount_path": "/etc"}, "/etc is reserved"),
        ({"access_mode": "ReadWriteMny"}, "did you mean ReadWriteMany?"),
        ({"access_mode": 3}, "use one of ReadWriteOnce (RWO)"),
        ({"storage_class": "A b"}, "invalid storage class name"),
    ],
)
def test_invalid_volumes_are_refused(given, message):
    with pytest.raises(wl.SpecError, match=re.escape(message)):
        make(**given)


def test_name_may_equal_a_subcommand():
    assert make(name="new").as_claim() == Claim(claim="new", path="/data")


def test_single_node_access_is_refused_for_several_nodes():
    make(access_mode="RWO").check_nodes(1)
    make(access_mode="ROX").check_nodes(4)
    with pytest.raises(
        wl.SpecError, match="the pods of one Kubernetes node can mount it"
    ) as caught:
        make(access_mode="RWO").check_nodes(2)
    assert "ReadWriteMany" in caught.value.hint
    with pytest.raises(
        wl.SpecError, match="only one pod can mount it at a time, but the compute has 3 nodes"
    ):
        make(access_mode="RWOP").check_nodes(3)


def test_ranks_find_it_by_name(monkeypatch, tmp_path):
    vol = make(name="shared-data")
    folder = vol.local_folder(tmp_path)
    assert folder == tmp_path / "volumes" / "shared-data"
    assert vol.local_folder(tmp_path).is_dir()  # applying it twice has no further effect
    monkeypatch.setenv(vol.variable(), str(folder))
    assert volume_path("shared-data") == str(folder)


def test_unwritable_home_is_reported(tmp_path):
    (tmp_path / "volumes").write_text("in the way")
    with pytest.raises(wl.EngineError, match="cannot create the folder of volume data"):
        make().local_folder(tmp_path)


@pytest.mark.cluster
def test_claim_is_created_once_and_kept(space):
    vol = make(name=f"vol-{secrets.token_hex(3)}")
    try:
        (message,) = vol.ensure(space.api, 2)
        assert message.startswith(f"created the claim {vol.name}, 1Gi")
        claim = space.api.get(PVCS, vol.name)
        assert "ownerReferences" not in claim["metadata"]
        assert claim["spec"]["accessModes"] == ["ReadWriteMany"]
        assert vol.ensure(space.api, 2) == []
        other = make(name=vol.name, size="1024Mi", storage_class="another")
        (message,) = other.ensure(space.api, 2)
        assert "storage class" in message
        assert "not another; it is used as it is" in message
        (message,) = make(name=vol.name, size="2Gi").ensure(space.api, 2)
        assert "with size 1Gi, not 2Gi" in message
    finally:
        space.api.delete(PVCS, vol.name)


@pytest.mark.cluster
def test_claims_that_cannot_be_used_are_refused(space):
    name = f"vol-{secrets.token_hex(3)}"
    with pytest.raises(wl.SpecError, match=f"claim {name} not found in namespace"):
        make(name=name, size="").ensure(space.api, 1)
    alone = make(name=name, access_mode="RWO")
    with pytest.raises(wl.SpecError, match="the pods of one Kubernetes node"):
        alone.ensure(space.api, 2)
    assert not [c for c in space.api.list(PVCS) if c["metadata"]["name"] == name]
    try:
        alone.ensure(space.api, 1)
        with pytest.raises(wl.SpecError, match="exists as ReadWriteOnce") as caught:
            make(name=name).ensure(space.api, 2)
        assert "under another name" in caught.value.hint
        (message,) = make(name=name).ensure(space.api, 1)
        assert "access mode ReadWriteOnce, not ReadWriteMany" in message
    finally:
        space.api.delete(PVCS, name)
