"""Secondary objects of a job (Services, Secrets, a NetworkPolicy, claims) and the volumes of its pods.

A job's small files are in its own Secret. Larger files are split across more Secrets. `make_volumes` and
`make_mounts` put these files into the pods, together with the volumes that the user requested. No I/O.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from windlass import names
from windlass.errors import SpecError
from windlass.kube.objects.kinds import ObjectKind
from windlass.kube.objects.naming import (
    claim_name,
    headless_name,
    lead_name,
    make_labels,
    make_selector,
    name_volumes,
    part_name,
)
from windlass.plan.plan import Plan
from windlass.spec.node_resources import halve
from windlass.spec.pod_spec import PodSpec
from windlass.spec.storage import (
    ACCESS_MODES,
    Claim,
    EmptyDir,
    HostPath,
    NewClaim,
    SecretFiles,
    Volume,
)

MAX_SECRET_BYTES = 1_000_000  # a Secret may hold 1 MiB
MAX_APPLIED_BYTES = 180_000  # 240,000 bytes in base64, within the 262,144 bytes of annotations

# Must run on any Python 3, because only the agent rejects an old interpreter with a clear error.
JOIN = f"""\
import os, sys
source, target = sys.argv[1:]
os.makedirs(target, exist_ok=True)
pieces = [name.rpartition(".") for name in os.listdir(source) if name[0] != "."]
for name in set(piece[0] for piece in pieces):
    path = os.path.join(target, name)
    with open(path + ".new", "wb") as whole:
        for number in sorted(int(piece[2]) for piece in pieces if piece[0] == name):
            with open(os.path.join(source, "%s.%d" % (name, number)), "rb") as piece:
                whole.write(piece.read())
    os.replace(path + ".new", path)
agent = os.path.join(target, {names.AGENT_FILE!r})
os.execv(sys.executable, [sys.executable, "-I", "-S", agent, "pod"])
"""
Object = dict[str, Any]

SECRET = "windlass-secret"  # noqa: S105
JOB = "windlass-job"
PARTS = "windlass-parts"
SHM = "shm"
SHM_PATH = "/dev/shm"  # noqa: S108
CODE = "code"
STATE = "state"
HIDDEN_KEY = "env."  # keys of the job's Secret that are variables of its pods, not files
_OWN = (SECRET, JOB, PARTS, SHM, CODE, STATE)
_ALL_MAY_READ = 0o444
_GROUP_MAY_READ = 0o440


@dataclass(frozen=True, slots=True, kw_only=True)
class FileNames:
    """Names of a job's files, which a pod template refers to."""

    keys: tuple[str, ...]  # keys of the job's own Secret
    num_parts: int  # number of Secrets with the pieces of larger files


@dataclass(frozen=True, slots=True, kw_only=True)
class JobFiles:
    """Contents of a job's Secrets: its own Secret, and those with the pieces of larger files."""

    own: Mapping[str, bytes]
    parts: tuple[Mapping[str, bytes], ...]

    @property
    def names(self) -> FileNames:
        """Names of the files, without their contents."""
        return FileNames(keys=tuple(self.own), num_parts=len(self.parts))

    def add_own(self, files: Mapping[str, bytes]) -> JobFiles:
        """Return a copy with more files in the job's own Secret."""
        return replace(self, own={**self.own, **files})

    def holds(self, name: str) -> bool:
        """Return whether the pieces include a large file of this name."""
        return any(first_piece(name) in part for part in self.parts)


def first_piece(name: str) -> str:
    """Return the key of a large file's first piece."""
    return f"{name}.0"


def cut_files(files: Mapping[str, bytes], most_bytes: int) -> tuple[Mapping[str, bytes], ...]:
    """Cut files into pieces that fill as few Secrets of `most_bytes` as possible."""
    parts: list[dict[str, bytes]] = [{}]
    room = most_bytes
    for name, content in files.items():
        number, start = 0, 0
        while start < len(content) or number == 0:
            if not room:
                parts.append({})
                room = most_bytes
            piece = content[start : start + room]
            parts[-1][f"{name}.{number}"] = piece
            number, start, room = number + 1, start + len(piece), room - len(piece)
    return tuple(parts)


def pod_of(plan: Plan) -> PodSpec:
    """Return the plan's pod spec, or raise `SpecError` if it has none."""
    if plan.pod is None:
        raise SpecError(
            f"the plan of {plan.job_id} has no pod spec", hint="its engine must list `pods`"
        )
    return plan.pod


def make_volumes(plan: Plan, files: FileNames) -> list[Object]:
    """Return all volumes of a pod."""
    pod = pod_of(plan)
    keys = [
        {"key": name, "path": name}
        for name in files.keys
        if name not in names.CLIENT_FILES and not name.startswith(HIDDEN_KEY)
    ]
    secret = {"secretName": plan.job_id, "defaultMode": _file_mode(pod), "items": keys}
    return [
        {"name": SECRET, "secret": secret},
        {"name": JOB, "emptyDir": {}},
        _make_parts_volume(plan, files.num_parts),
        make_shm(pod),
        *make_requested_volumes(pod, plan.job_id),
    ]


def _make_parts_volume(plan: Plan, num_parts: int) -> Object:
    """Return the projected volume that has all pieces of large files in one folder."""
    sources = [{"secret": {"name": part_name(plan.job_id, at)}} for at in range(num_parts)]
    mode = _file_mode(pod_of(plan))
    return {"name": PARTS, "projected": {"defaultMode": mode, "sources": sources}}


def read_file_names(pod: Object, job_id: str) -> FileNames:
    """Return the names of a job's files, from the spec of its first pods."""
    volumes = {volume["name"]: volume for volume in pod["volumes"]}
    if PARTS not in volumes:  # older versions kept the agent in the job's own Secret
        raise SpecError(
            f"{job_id} was created by an older Windlass and cannot get workers of another size",
            hint=f"run `windlass compute rm {job_id}`, then create it again",
        )
    variables = [one for container in pod["containers"] for one in container.get("env", ())]
    sources = [one.get("valueFrom", {}).get("secretKeyRef", {}) for one in variables]
    hidden = [one["key"] for one in sources if one.get("name") == job_id]
    return FileNames(
        keys=(
            *(item["key"] for item in volumes[SECRET]["secret"]["items"]),
            *(key for key in hidden if key.startswith(HIDDEN_KEY)),
        ),
        num_parts=len(volumes[PARTS]["projected"]["sources"]),
    )


def make_mounts(plan: Plan) -> list[Object]:
    """Return the mounts of the volumes of `make_volumes`."""
    return [
        {"name": SECRET, "mountPath": names.SECRET_FOLDER, "readOnly": True},
        {"name": JOB, "mountPath": names.JOB_FOLDER},
        {"name": PARTS, "mountPath": names.PARTS_FOLDER, "readOnly": True},
        {"name": SHM, "mountPath": SHM_PATH},
        *make_requested_mounts(pod_of(plan)),
    ]


def make_shm(pod: PodSpec) -> Object:
    """Return the shared memory volume.

    By default its limit is half of the pod's memory, so that it cannot use all of it. Without this volume
    the container runtime provides 64 MB.
    """
    size = pod.shm or (halve(pod.memory) if pod.memory else "")
    limit = {"sizeLimit": size} if size else {}
    return {"name": SHM, "emptyDir": {"medium": "Memory", **limit}}


def named_mounts(pod: PodSpec) -> list[tuple[str, Volume | SecretFiles]]:
    """Return the requested volumes and Secret files, each with its volume name."""
    files = [secret for secret in pod.secrets if isinstance(secret, SecretFiles)]
    mounts = [*pod.volumes, *files]
    return list(zip(name_volumes(mounts, _OWN), mounts, strict=True))


def make_requested_volumes(pod: PodSpec, prefix: str) -> list[Object]:
    """Return the requested volumes. The names of new claims start with `prefix`."""
    return [{"name": name, **_make_source(pod, prefix, name, m)} for name, m in named_mounts(pod)]


def make_requested_mounts(pod: PodSpec) -> list[Object]:
    """Return the mounts of the requested volumes."""
    mounts = []
    for name, mount in named_mounts(pod):
        is_fixed = isinstance(mount, SecretFiles) or getattr(mount, "read_only", False)
        fixed = {"readOnly": True} if is_fixed else {}
        mounts.append({"name": name, "mountPath": mount.path, **fixed})
    return mounts


def _make_source(pod: PodSpec, prefix: str, name: str, mount: Volume | SecretFiles) -> Object:
    match mount:
        case Claim():
            fixed = {"readOnly": True} if mount.read_only else {}
            return {"persistentVolumeClaim": {"claimName": mount.claim, **fixed}}
        case NewClaim():
            return {"persistentVolumeClaim": {"claimName": claim_name(prefix, name)}}
        case EmptyDir():
            return {"emptyDir": {"sizeLimit": mount.size} if mount.size else {}}
        case HostPath():
            return {"hostPath": {"path": mount.source}}
        case SecretFiles():
            return {"secret": {"secretName": mount.secret, "defaultMode": _file_mode(pod)}}


def _file_mode(pod: PodSpec) -> int:
    # without an fsGroup, the pod's user can read only files that are readable by all
    return _ALL_MAY_READ if pod.run_as is None else _GROUP_MAY_READ


def make_owner(kind: ObjectKind, body: Mapping[str, Any]) -> Object:
    """Return an owner reference to a created object."""
    return {
        "apiVersion": kind.api_version,
        "kind": kind.name,
        "name": body["metadata"]["name"],
        "uid": body["metadata"]["uid"],
        "controller": False,
        "blockOwnerDeletion": False,
    }


def make_metadata(
    plan: Plan, name: str, owner: Object | None = None, annotations: Object | None = None
) -> Object:
    """Return the metadata of one object of a job."""
    pod = pod_of(plan)
    metadata = {
        "name": name,
        "namespace": pod.namespace,
        "labels": {**make_labels(plan), **pod.labels},
        "annotations": annotations,
        "ownerReferences": [owner] if owner else None,
    }
    return {key: value for key, value in metadata.items() if value}


def make_headless(plan: Plan, owner: Object | None = None) -> Object:
    """Return the headless Service, which gives each pod a DNS name as soon as it has an address."""
    spec = {"clusterIP": "None", "selector": make_selector(plan)}
    ports = {"agent": names.AGENT_PORT, "rdzv": names.POD_MASTER_PORT}
    return _make_service(plan, headless_name(plan.job_id), spec, ports, owner)


def make_lead_service(
    plan: Plan, lead_labels: Mapping[str, str], owner: Object | None = None
) -> Object:
    """Return the Service of node 0, whose address exists before node 0 and outlives it."""
    spec = {"type": "ClusterIP", "selector": {**make_selector(plan), **lead_labels}}
    return _make_service(plan, lead_name(plan.job_id), spec, {"agent": names.AGENT_PORT}, owner)


def _make_service(
    plan: Plan, name: str, spec: Object, ports: Mapping[str, int], owner: Object | None
) -> Object:
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": make_metadata(plan, name, owner),
        "spec": {
            **spec,
            "publishNotReadyAddresses": True,
            "ports": [
                {"name": port, "port": number, "targetPort": number}
                for port, number in ports.items()
            ],
        },
    }


def make_secret(plan: Plan, files: Mapping[str, bytes], owner: Object | None = None) -> Object:
    """Return the job's own Secret: plan and certificates. Clients read it too."""
    return _make_secret(plan, plan.job_id, files, owner)


def make_part(
    plan: Plan, number: int, pieces: Mapping[str, bytes], owner: Object | None = None
) -> Object:
    """Return one Secret with pieces of the agent and other large files. Only pods read it."""
    return _make_secret(plan, part_name(plan.job_id, number), pieces, owner)


def _make_secret(plan: Plan, name: str, files: Mapping[str, bytes], owner: Object | None) -> Object:
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": make_metadata(plan, name, owner),
        "type": "Opaque",
        "immutable": True,
        "data": {name: base64.b64encode(content).decode() for name, content in files.items()},
    }


def make_policy(plan: Plan, *, with_egress: bool, owner: Object | None = None) -> Object:
    """Return the NetworkPolicy that admits only the job's own pods, except to the pod's open ports.

    With `with_egress` it also allows egress to the job's pods and DNS, for namespaces that restrict egress.
    """
    own = {"podSelector": {"matchLabels": make_selector(plan)}}
    spec: Object = {
        **own,
        "policyTypes": ["Ingress"],
        "ingress": [{"from": [own]}],
    }
    if ports := pod_of(plan).open_ports:
        opened = [{"port": port, "protocol": "TCP"} for port in ports]
        spec["ingress"].append({"from": [{"podSelector": {}}], "ports": opened})
    if with_egress:
        dns = [{"port": 53, "protocol": protocol} for protocol in ("UDP", "TCP")]
        spec["policyTypes"] = ["Ingress", "Egress"]
        spec["egress"] = [{"to": [own]}, {"ports": dns}]
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": make_metadata(plan, plan.job_id, owner),
        "spec": spec,
    }


def make_claims(plan: Plan, owner: Object | None = None) -> list[Object]:
    """Return the claims that are created with the job and deleted with it."""
    return [
        _make_claim(plan, claim_name(plan.job_id, name), mount, owner)
        for name, mount in named_mounts(pod_of(plan))
        if isinstance(mount, NewClaim)
    ]


def _make_claim(plan: Plan, name: str, claim: NewClaim, owner: Object | None) -> Object:
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": make_metadata(plan, name, owner),
        "spec": make_claim_spec(claim, num_pods=len(plan.nodes)),
    }


def make_claim_spec(claim: NewClaim, *, num_pods: int) -> Object:
    """Return the spec of a claim. A job with many pods gets ReadWriteMany by default."""
    access = claim.access or ("RWX" if num_pods > 1 else "RWO")
    spec: Object = {
        "accessModes": [ACCESS_MODES[access]],
        "resources": {"requests": {"storage": claim.size}},
    }
    if claim.storage_class:
        spec["storageClassName"] = claim.storage_class
    return spec
