"""Functions `run` and `submit`, which turn a target and keywords into a job.

A job is prepared in frozen stages, each made from the stages before it. Settings and target are read once:

    Settings -> WorkTarget -> FittedJob -> JobSpec -> Plan -> Prepared

Only this module combines spec, plan and engine. It prints through `client.jobs.live_view` only.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from windlass.client.jobs.job import Interrupts, Job
from windlass.client.jobs.job_ids import make_job_id
from windlass.client.jobs.launcher_size import STANDALONE, fit_launcher
from windlass.client.jobs.node_settings import fit_to_pods, make_pod, make_sizes
from windlass.client.jobs.packing import Packed, pack_code
from windlass.client.jobs.source_analysis import check_script, choose_preload
from windlass.client.jobs.target import WorkTarget, import_paths, read_in_image, read_work_target
from windlass.client.keywords import JOB, show_keywords
from windlass.engines.engine_table import as_engine, has_pods, make_renderer
from windlass.engines.protocol import Renderer, check_capabilities
from windlass.errors import SpecError, count_noun
from windlass.frameworks.framework import Framework, choose_framework, load_framework
from windlass.near_names import did_you_mean
from windlass.plan.plan import Plan, make_plan
from windlass.settings import NodeRange, Settings, read_settings
from windlass.settings.table import BY_NAME, POD_GROUPS
from windlass.spec.job_spec import JobSpec
from windlass.spec.pod_spec import PodSpec
from windlass.spec.work import Command, Function, Script, Work

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from windlass.client.keyword_types import JobKeywords

TargetLike = str | Path | Callable[..., Any] | Sequence[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class FittedJob:
    """Target and settings that fit each other, with engine, framework and ID. The stage before the spec."""

    target: WorkTarget
    settings: Settings
    engine: Renderer
    framework: Framework
    job_id: str

    @property
    def has_pods(self) -> bool:
        return "pods" in self.engine.can


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """Job that is ready to start. A dry run shows its plan, and `start` starts it."""

    engine: Renderer
    plan: Plan
    payload: bytes | None
    settings: Settings
    bundle: Path | None = None
    notes: tuple[str, ...] = ()  # deviations from the usual behavior, with reasons

    def start(self, *, hidden: Mapping[str, str] | None = None) -> Job:
        """Start the job. `hidden` holds environment variables for the ranks that are kept out of the plan."""
        engine = as_engine(self.engine)
        ref = engine.submit(self.plan, self.payload, self.bundle, hidden=hidden or {})
        return Job(engine, ref)


@show_keywords(JOB)
def run(
    target: TargetLike,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    quiet: bool = False,
    **settings: Unpack[JobKeywords],
) -> Any:
    """Run `target` on every rank and return a list of what each returned, in rank order.

    An exception of a rank is raised here with its own type. Ctrl-C ends the job first, and raises
    KeyboardInterrupt here and in the ranks. Other settings come from the environment, a file or defaults.

    target: a function, "train.py", "train.py::function", "-m module" or a command as a list of words.
    args: arguments of a function, or command line words of a script or module.
    kwargs: keyword arguments of a function.
    quiet: show no logs (default: logs are shown as they arrive).
    """
    from windlass.client.jobs.live_view import LiveView, QuietView, follow
    from windlass.client.terminal import print_notice

    prepared = prepare_job(target, args, kwargs, detach=False, flags=settings)
    check_honored(prepared)
    for note in () if quiet else prepared.notes:
        print_notice(note)
    view = QuietView() if quiet else LiveView()
    with Interrupts() as interrupts:
        job = prepared.start()
        interrupts.watch(job)
        follow(job, view, interrupts=interrupts)
    interrupts.pass_on()
    values = job.results()
    return values if load_framework(prepared.plan.framework).gives_list else values[0]


@show_keywords(JOB)
def submit(
    target: TargetLike,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    **settings: Unpack[JobKeywords],
) -> Job:
    """Start `target` and return its job immediately. The job keeps running when this process ends.

    target: a function, "train.py", "train.py::function", "-m module" or a command as a list of words.
    args: arguments of a function, or command line words of a script or module.
    kwargs: keyword arguments of a function.
    """
    from windlass.client.terminal import print_notice

    prepared = prepare_job(target, args, kwargs, detach=True, flags=settings)
    check_honored(prepared)
    for note in describe_pretence(prepared.settings):
        print_notice(note)
    return prepared.start()


def prepare_job(
    target: TargetLike,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    detach: bool,
    flags: Mapping[str, Any],
    job_id: str = "",
) -> Prepared:
    """Prepare a job without starting it. Without `job_id` it gets a new ID."""
    cwd = current_folder()
    _check_arguments(target, args, kwargs, flags)
    settings = read_settings(flags=flags, environ=os.environ, start=cwd)
    work_target = choose_target(target, args, kwargs, settings=settings, cwd=cwd)
    check_declares(work_target, cwd)
    return prepare_target(work_target, settings, cwd=cwd, detach=detach, job_id=job_id)


def choose_target(
    target: TargetLike,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    settings: Settings,
    cwd: Path,
) -> WorkTarget:
    """Read a target from the image or from this machine, depending on the settings."""
    if settings.in_image:
        return read_in_image(target, args, kwargs)
    is_local = not has_pods(settings.engine, settings)
    given = choose_framework(settings.framework, is_command=False).gives
    return read_work_target(target, args, kwargs, cwd=cwd, is_local=is_local, given=given)


def _check_arguments(
    target: object, args: object, kwargs: object, flags: Mapping[str, Any]
) -> None:
    """Reject arguments meant for the function itself, as in `wl.run(f, 3)` and `wl.run(f, x=3)`."""
    name = getattr(target, "__name__", "f") if callable(target) else "f"
    if not isinstance(args, Sequence) or (callable(target) and isinstance(args, (str, bytes))):
        raise SpecError(
            f"args must be a list of arguments, not {args!r:.60}",
            hint=f"to pass it to {name}: wl.run({name}, args=[{args!r:.60}])",
        )
    if kwargs is not None and not isinstance(kwargs, Mapping):
        raise SpecError(
            f"kwargs must be a dict, not {kwargs!r:.60}", hint=f"use wl.run({name}, kwargs={{...}})"
        )
    unknown = [key for key in flags if key not in BY_NAME]
    if unknown and callable(target):
        key = unknown[0]
        raise SpecError(
            f"unknown setting {key!r}",
            hint=did_you_mean(
                key,
                BY_NAME,
                f"to pass it to {name}: wl.run({name}, kwargs={{{key!r}: {flags[key]!r:.60}}})",
                alike=0.8,
            ),
        )


def check_honored(prepared: Prepared) -> None:
    """Reject a setting of pods that was given for this job, on an engine without pods.

    Settings in files and variables also apply to jobs on a cluster, so they are not an error.
    """
    if "pods" in prepared.engine.can:
        return
    settings = prepared.settings
    honored = ("in_image", *(("cpus", "memory") if prepared.plan.sizes is not None else ()))
    for setting in BY_NAME.values():
        is_given = settings.origin(setting.name).startswith("flag")
        if setting.group in POD_GROUPS and is_given and setting.name not in honored:
            raise SpecError(
                f"{setting.flag} is for pods, but the engine {prepared.engine.name} has none",
                hint="remove it, or choose a cluster: -e kubernetes; in windlass.toml it applies to "
                "clusters only",
            )


def check_declares(target: WorkTarget, cwd: Path) -> None:
    """Reject a script that only declares apps, given as the target or as an argument of `python`."""
    work = target.work
    if isinstance(work, Script):
        check_script(target.source, (work.path,))
    elif isinstance(work, Command) and len(work.argv) > 1 and "python" in work.argv[0]:
        words = [word for word in work.argv[1:] if not word.startswith("-")]
        if words and words[0].endswith(".py"):
            check_script(cwd / words[0], words)


def prepare_target(
    target: WorkTarget,
    settings: Settings,
    *,
    cwd: Path,
    detach: bool,
    pod: PodSpec | None = None,
    root: Path | None = None,
    job_id: str = "",
) -> Prepared:
    """Prepare a job that runs in `cwd` from its target and settings.

    `pod` and `root`, the project's folder, override the settings and the search for a project.
    """
    job = fit_job(target, settings, job_id=job_id)
    preload, note = _choose_preload(job)
    spec = make_spec(job, cwd=cwd, detach=detach, preload=preload, pod=pod)
    packed, plan = _decide(job, spec, cwd=cwd, root=root)
    check_capabilities(job.engine, plan)
    return Prepared(
        engine=job.engine,
        plan=plan,
        payload=target.payload,
        bundle=packed.bundle,
        settings=job.settings,
        notes=(
            *note,
            *describe_pretence(job.settings),
            *_describe_procs(job.settings.procs, spec),
            *_describe_standalone(job.target.work, len(plan.nodes)),
        ),
    )


def fit_job(target: WorkTarget, settings: Settings, *, job_id: str = "") -> FittedJob:
    """Fit target and settings to each other, and choose engine, framework and ID."""
    work, sized = target.work, settings
    if isinstance(work, Command):
        work, sized = fit_launcher(work, settings)
    engine = make_renderer(sized.engine, sized)
    framework = choose_framework(sized.framework, is_command=isinstance(work, Command))
    job_id = job_id or make_job_id(work, sized.name)
    has_pods = "pods" in engine.can
    return FittedJob(
        target=replace(target, work=work),
        settings=fit_to_pods(sized, framework, job_id) if has_pods else sized,
        engine=engine,
        framework=framework,
        job_id=job_id,
    )


def _decide(job: FittedJob, spec: JobSpec, *, cwd: Path, root: Path | None) -> tuple[Packed, Plan]:
    """Return the plan, and the packed code for nodes on other machines."""
    facts = job.engine.facts()
    packed = Packed(spec=spec)
    if facts.code_folder:
        home = Path(job.settings.home).expanduser()
        folder = facts.code_folder
        packed = pack_code(spec, job.target, cwd=cwd, code_folder=folder, home=home, root=root)
    plan = make_plan(
        packed.spec,
        job_id=job.job_id,
        now_s=time.time(),
        facts=facts,
        inputs=packed.inputs,
        python_minor=packed.python_minor,
    )
    return packed, plan


def describe_pretence(settings: Settings) -> tuple[str, ...]:
    """Return the note on GPUs that are requested but not used."""
    if not (settings.pretend_gpus and settings.gpus):
        return ()
    return (
        f"pretend_gpus: ranks use the CPU in place of {count_noun(settings.gpus, 'GPU')} per node",
    )


def _describe_procs(requested: int | None, spec: JobSpec) -> tuple[str, ...]:
    """Return the note on a framework that starts another number of ranks than requested."""
    if requested in (None, spec.procs):
        return ()
    processes = "one process" if spec.procs == 1 else f"{spec.procs} processes"
    return (f"framework {spec.framework}: {processes} per node, not {requested}",)


def _describe_standalone(work: Work, num_nodes: int) -> tuple[str, ...]:
    """Return the note on a launcher with nodes that do not connect to each other."""
    if num_nodes > 1 and isinstance(work, Command) and STANDALONE in work.label:
        return (f"{STANDALONE}: each of the {num_nodes} nodes runs a separate world",)
    return ()


def current_folder() -> Path:
    """Return the current folder. Raise SpecError if it no longer exists."""
    try:
        return Path.cwd()
    except FileNotFoundError as error:
        raise SpecError(
            "the current folder no longer exists", hint="change to an existing folder"
        ) from error


def make_spec(
    job: FittedJob, *, cwd: Path, detach: bool, preload: tuple[str, ...], pod: PodSpec | None = None
) -> JobSpec:
    """Return the spec of a job. `pod` overrides the settings of pods."""
    work, settings, framework = job.target.work, job.settings, job.framework
    nodes = settings.nodes
    if pod is None and job.has_pods:
        pod = make_pod(settings)
    return JobSpec(
        work=work,
        name=settings.name,
        engine=settings.engine,
        framework=framework.name,
        nodes=nodes.max if isinstance(nodes, NodeRange) else nodes,
        min_nodes=nodes.min if isinstance(nodes, NodeRange) else 0,
        procs=framework.count_procs(settings.procs or settings.gpus or 1, work.kind),
        env=settings.env,
        cwd="" if settings.in_image else str(cwd),
        # only a callable of this process needs its import paths
        paths=import_paths() if isinstance(work, Function) and not work.file else (),
        python=settings.python,
        start=settings.start,
        preload=preload,
        restarts=settings.restarts,
        node_restarts=settings.node_restarts,
        timeout_s=settings.timeout_s,
        grace_s=settings.grace_s,
        peer_wait_s=settings.peer_wait_s,
        lease_s=settings.lease_s,
        join_timeout_s=settings.join_timeout_s,
        detach=detach,
        pod=pod,
        only_first=framework.cluster is not None,
        sizes=make_sizes(framework, settings),
    )


def _choose_preload(job: FittedJob) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the modules to preload, and a note if torch is not preloaded."""
    target, settings, framework = job.target, job.settings, job.framework
    if settings.start == "spawn" or isinstance(target.work, Command):
        return (), ()
    if settings.preload is not None:
        return settings.preload, ()
    known = target.preload
    if known is None:
        known = framework.preload if target.source is None else choose_preload(target.source)
    chosen = tuple(name for name in known if name.partition(".")[0] in framework.preload)
    early = target.find_early_write() if chosen else None
    return (chosen, ()) if early is None else ((), (f"torch is not imported ahead: {early}",))
