"""Volumes of a pod and where they are mounted: the job's own, and those that were asked for. Pure."""

from __future__ import annotations

from typing import Any

from windlass import names
from windlass.errors import SpecError
from windlass.kube.job_files import FileNames
from windlass.kube.naming import claim_name, name_volumes, part_name
from windlass.plan.plan import Plan
from windlass.spec.pod_spec import PodSpec
from windlass.spec.quantity import halve
from windlass.spec.storage import (
    Claim,
    EmptyDir,
    HostPath,
    NewClaim,
    SecretFiles,
    Volume,
)

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


def pod_of(plan: Plan) -> PodSpec:
    """What was asked of the plan's pods."""
    if plan.pod is None:
        raise SpecError(
            f"the plan of {plan.job_id} says nothing of pods", hint="its engine must list `pods`"
        )
    return plan.pod


def make_volumes(plan: Plan, files: FileNames) -> list[Object]:
    """Every volume of a pod."""
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
        *make_asked_volumes(pod, plan.job_id),
    ]


def _make_parts_volume(plan: Plan, num_parts: int) -> Object:
    """All pieces of large files in one folder."""
    sources = [{"secret": {"name": part_name(plan.job_id, at)}} for at in range(num_parts)]
    mode = _file_mode(pod_of(plan))
    return {"name": PARTS, "projected": {"defaultMode": mode, "sources": sources}}


def read_file_names(pod: Object, job_id: str) -> FileNames:
    """Return the names of a job's files, from the spec of its first pods."""
    volumes = {volume["name"]: volume for volume in pod["volumes"]}
    if PARTS not in volumes:  # the agent was in the job's own Secret once
        raise SpecError(
            f"{job_id} was made by an older Windlass and can get no workers of another size",
            hint=f"windlass compute rm {job_id}, then make it again",
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
    """Where the volumes of `make_volumes` are found."""
    return [
        {"name": SECRET, "mountPath": names.SECRET_FOLDER, "readOnly": True},
        {"name": JOB, "mountPath": names.JOB_FOLDER},
        {"name": PARTS, "mountPath": names.PARTS_FOLDER, "readOnly": True},
        {"name": SHM, "mountPath": SHM_PATH},
        *make_asked_mounts(pod_of(plan)),
    ]


def make_shm(pod: PodSpec) -> Object:
    """Shared memory: half of what the pod has, so that it cannot fill it all; the runtime's own is 64 MB."""
    size = pod.shm or (halve(pod.memory) if pod.memory else "")
    limit = {"sizeLimit": size} if size else {}
    return {"name": SHM, "emptyDir": {"medium": "Memory", **limit}}


def named_mounts(pod: PodSpec) -> list[tuple[str, Volume | SecretFiles]]:
    """What was asked for, each with the name it has as a volume."""
    files = [secret for secret in pod.secrets if isinstance(secret, SecretFiles)]
    mounts = [*pod.volumes, *files]
    return list(zip(name_volumes(mounts, _OWN), mounts, strict=True))


def make_asked_volumes(pod: PodSpec, prefix: str) -> list[Object]:
    """The volumes that were asked for; claims that are made have names that start with `prefix`."""
    return [{"name": name, **_make_source(pod, prefix, name, m)} for name, m in named_mounts(pod)]


def make_asked_mounts(pod: PodSpec) -> list[Object]:
    """Where the volumes that were asked for are found."""
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
    # without a group of the pod's own its user would not be let in
    return _ALL_MAY_READ if pod.run_as is None else _GROUP_MAY_READ
