"""Specs of computes: read from a compute's keywords, and turned into the plan of its nodes.

Variables, steps, the number of nodes and their time to live can change while nodes are alive. Other settings,
such as image, resources and volumes, are fixed. Their digest decides whether live nodes can be reused. This
module starts no nodes.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from windlass import names, records
from windlass.client.compute.nodes.compute_keywords import make_setting_flags
from windlass.client.compute.nodes.compute_owners import name_user
from windlass.client.compute.nodes.engine_choice import EngineChoice, choose_where
from windlass.client.compute.resources.image import Image
from windlass.client.compute.resources.secret import resolve_secrets
from windlass.client.compute.resources.volume import Volume
from windlass.client.jobs.job_ids import make_job_id
from windlass.client.jobs.node_settings import forget_own_python, make_pod
from windlass.client.jobs.packing import TRAIN_ARCHIVE
from windlass.client.jobs.run import current_folder
from windlass.client.terminal import print_notice
from windlass.engines.engine_table import make_compute_engine
from windlass.engines.protocol import ComputeEngine
from windlass.errors import SpecError
from windlass.frameworks.framework import choose_framework
from windlass.plan.plan import Plan, make_plan
from windlass.settings import Settings, read_settings
from windlass.settings.reading import read_duration
from windlass.spec.job_spec import JobSpec
from windlass.spec.pod_spec import PodSize, PodSpec, Toleration
from windlass.spec.work import Calls, ImageStep

_RESTARTS = 10_000  # a lost node is always replaced
_GONE_S = 600.0  # how long the status of an ended compute is kept
_SMALLEST_BYTES = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class ResolvedCompute:
    """Resolved spec of a compute: its engine, its nodes, and their settings."""

    engine: ComputeEngine
    where: EngineChoice
    settings: Settings
    pod: PodSpec | None
    env: Mapping[str, str]
    steps: tuple[ImageStep, ...]
    hidden: Mapping[str, str] = field(repr=False)  # values of secrets
    ttl_s: float | None
    procs: int
    volumes: tuple[Volume, ...] = ()

    @property
    def has_pods(self) -> bool:
        return "pods" in self.engine.can

    @property
    def fixed(self) -> dict[str, Any]:
        """Settings that cannot change while the nodes are alive."""
        pod = {} if self.pod is None else dict(records.to_json(self.pod))
        return {**forget_changing(pod), **self.about}

    @property
    def about(self) -> dict[str, str]:
        """Part of `fixed` that is not in the pod spec."""
        settings = self.settings
        python = settings.python if self.has_pods else name_interpreter(settings.python)
        about = {"python": python, "start": settings.start, "windlass": names.VERSION}
        if settings.gpus and not self.has_pods:
            about["gpus"] = f"{settings.gpus}{' pretended' if settings.pretend_gpus else ''}"
        return about

    @property
    def digest(self) -> str:
        return hashlib.sha256(json.dumps(self.fixed, sort_keys=True).encode()).hexdigest()

    def ensure_volumes(self, num_nodes: int) -> None:
        """Create missing claims, and print which ones were created."""
        if not self.volumes or not self.has_pods:
            return
        from windlass.kube.client.api import connect

        api = connect(context=self.settings.context, namespace=self.settings.namespace)
        for volume in self.volumes:
            for sentence in volume.ensure(api, num_nodes):
                print_notice(sentence)

    def compare_env(self, there: Mapping[str, str]) -> dict[str, str | None]:
        """Return the changes for nodes that were planned with `there`. None removes a variable."""
        changed: dict[str, str | None] = {
            key: value for key, value in self.env.items() if there.get(key) != value
        }
        # keep variables that every plan sets, and those omitted because this process already has them
        kept = {*self.env, *replace(self, env={}).make_plan("nodes", 1, ()).env, *os.environ}
        return changed | dict.fromkeys(key for key in there if key not in kept)

    def make_plan(
        self,
        name: str,
        num_nodes: int,
        preload: tuple[str, ...],
        *,
        min_nodes: int = 0,
        place_s: float | None = None,
        workers: PodSize | None = None,
    ) -> Plan:
        work = Calls(
            fixed=self.digest,
            about=self.about,
            ttl_s=self.ttl_s,
            steps=self.steps,
            user=name_user(),
            identity=self.engine.identity(),
            place_s=place_s,
        )
        settings = self.settings
        spec = JobSpec(
            work=work,
            name=name,
            engine=self.where.engine,
            framework=choose_framework(settings.framework, is_command=False).name,
            nodes=num_nodes,
            min_nodes=min_nodes,
            procs=self.procs,
            # any call may import the training library
            env={**self.env, names.TRAIN: TRAIN_ARCHIVE} if self.has_pods else self.env,
            python=settings.python,
            start=settings.start,
            preload=settings.preload if settings.preload is not None else preload,
            node_restarts=_RESTARTS,
            grace_s=settings.grace_s,
            peer_wait_s=settings.peer_wait_s,
            join_timeout_s=settings.join_timeout_s,
            detach=True,
            pod=None if self.pod is None else replace(self.pod, ttl_s=_GONE_S, workers=workers),
        )
        job_id = make_job_id(work, name)
        return make_plan(spec, job_id=job_id, now_s=time.time(), facts=self.engine.facts())


def decide(given: Mapping[str, Any], *, is_there: bool = False) -> ResolvedCompute:
    """Resolve and check a compute's keywords and the settings.

    For a compute that exists already (`is_there`), the pod spec is left out.
    """
    image = Image.read(given.get("image") or "")
    volumes = [volume for volume in given.get("volumes") or () if _is_volume(volume)]
    folder = current_folder()
    flags = _make_flags(given, image)
    settings = read_settings(flags=flags, environ=os.environ, start=folder)
    where = choose_where(str(given.get("engine") or ""), settings)
    origins = {**settings.origins, "engine": where.why}
    settings = replace(settings, engine=where.engine, origins=origins)
    engine = make_compute_engine(where.engine, settings)
    has_pods = "pods" in engine.can
    settings = forget_own_python(settings) if has_pods else settings
    secrets = resolve_secrets(
        [*(settings.secrets if has_pods else ()), *(given.get("secrets") or ())],
        environ=os.environ,
        has_pods=has_pods,
    )
    pod = None
    if has_pods and not is_there:
        pod = make_pod(settings)
        claims = (*pod.volumes, *(volume.as_claim() for volume in volumes))
        tolerations = (*pod.tolerations, *_read_tolerations(given.get("tolerations")))
        pod = replace(
            pod, secrets=secrets.records, volumes=claims, tolerations=tolerations, in_image=False
        )
    home = Path(str(settings.value("home"))).expanduser()
    return ResolvedCompute(
        engine=engine,
        where=where,
        settings=settings,
        pod=pod,
        env={**image.variables, **settings.env, **_place(volumes, home, has_pods=has_pods)},
        steps=image.steps,
        hidden=secrets.hidden,
        ttl_s=read_ttl(given.get("inactivity_ttl")),
        procs=settings.procs or settings.gpus or 1,
        volumes=tuple(volumes),
    )


def _make_flags(given: Mapping[str, Any], image: Image) -> dict[str, Any]:
    own = ("image", "volumes", "secrets", "tolerations", "inactivity_ttl", "engine", "root", "name")
    plain = {key: value for key, value in given.items() if key not in own and value is not None}
    for key in ("cpus", "memory", "shm"):
        if key in plain:
            plain[key] = _read_quantity(key, plain[key])
    if "env" in plain:
        plain["env"] = {str(key): str(value) for key, value in plain["env"].items()}
    flags = make_setting_flags(plain)
    if texts := tuple(v for v in given.get("volumes") or () if isinstance(v, str)):
        flags["volumes"] = texts
    return {**flags, "image": image.ref} if image.ref else flags


def _read_quantity(key: str, value: Any) -> str:
    """Return a quantity as text. Raise SpecError for an implausibly small number of bytes."""
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if is_number and key != "cpus" and value < _SMALLEST_BYTES:
        raise SpecError(f"{key}={value} means {value} bytes", hint=f'write {key}="{value}Gi"')
    return f"{value:g}" if isinstance(value, float) else str(value)


def _is_volume(given: Any) -> bool:
    """Return whether this is a Volume. A string has a form of the command line."""
    if isinstance(given, (Volume, str)):
        return isinstance(given, Volume)
    raise SpecError(
        f"volumes must contain Volume objects, not {given!r:.60}",
        hint='use Volume(name="shared-data", size="1Ti", mount_path="/data")',
    )


def _read_tolerations(given: Any) -> tuple[Toleration, ...]:
    """Read tolerations, given as on the command line or as in Kubernetes manifests."""
    from windlass.spec.pod_spec import read_toleration

    tolerations = []
    for one in given or ():
        if isinstance(one, Mapping):
            keys = ("key", "value", "effect")
            tolerations.append(Toleration(**{key: str(one.get(key) or "") for key in keys}))
        else:
            tolerations.append(read_toleration(str(one)))
    return tuple(tolerations)


def read_ttl(given: Any) -> float | None:
    """Return the idle time in seconds after which nodes end. None means never.

    Accepts seconds, a text such as 30m, or "none".
    """
    if given is None or given == "none":
        return None
    try:
        ttl_s = read_duration(given)
    except SpecError as error:
        raise SpecError(f"inactivity_ttl: {error.message}", hint=error.hint) from None
    if ttl_s <= 0:
        raise SpecError(
            f"inactivity_ttl must be more than 0, not {given}",
            hint="use None to keep the nodes forever",
        )
    return ttl_s


def _place(volumes: list[Volume], home: Path, *, has_pods: bool) -> dict[str, str]:
    return {
        volume.variable(): volume.mount_path if has_pods else str(volume.local_folder(home))
        for volume in volumes
    }


def forget_changing(pod: Mapping[str, Any]) -> dict[str, Any]:
    """Return the pod's settings that are fixed while it is alive. The size of workers is not fixed."""
    return {key: value for key, value in pod.items() if key not in ("ttl_s", "workers")}


def describe_change(there: Mapping[str, Any], wanted: Mapping[str, Any]) -> str:
    """Describe how live nodes differ from the wanted ones."""
    keys = sorted({*there, *wanted})
    changed = [key for key in keys if there.get(key) != wanted.get(key)]
    shown = [f"{key}: {_short(there.get(key))} -> {_short(wanted.get(key))}" for key in changed]
    return "; ".join(shown) or "a setting that this version does not know"


def _short(value: Any) -> str:
    text = "none" if value in (None, "", [], {}) else str(value)
    return text if len(text) < 90 else f"{text[:40]}...{text[-40:]}"


def name_interpreter(wanted: str) -> str:
    """Return one name for an interpreter of this machine, because python and python3 are often the same.

    The name includes the folder, which determines the packages. Virtual environments often share one
    executable.
    """
    path = Path(shutil.which(os.path.expanduser(wanted)) or wanted or sys.executable)
    return str(path.absolute().parent.resolve() / path.resolve().name)
