"""Hypothesis strategies for specs, plans and statuses."""

from __future__ import annotations

from hypothesis import strategies as st

from windlass.plan.plan import Facts, Plan, make_plan
from windlass.spec.job_spec import START_METHODS, JobSpec
from windlass.spec.pod_spec import SPREADS, PodSpec, Toleration
from windlass.spec.storage import (
    Claim,
    EmptyDir,
    HostPath,
    NewClaim,
    SecretFiles,
    SecretVariable,
    SecretVariables,
)
from windlass.spec.work import Command, Function, Module, Script
from windlass.wire import results, status
from windlass.wire.states import MomentName

texts = st.text(max_size=20)
words = st.lists(texts, max_size=4).map(tuple)
times = st.floats(min_value=0, allow_nan=False)
seconds = st.floats(min_value=0, max_value=1e9, exclude_min=True)
env_names = st.from_regex(r"[A-Za-z_][A-Za-z0-9_]*", fullmatch=True)
env_values = st.text(st.characters(exclude_characters="\0"), max_size=20)
envs = st.dictionaries(env_names, env_values, max_size=4)

works = st.one_of(
    st.builds(Function, name=texts, file=st.none() | texts),
    st.builds(Script, path=texts, args=words),
    st.builds(Module, name=texts, args=words),
    st.builds(Command, argv=words),
)

labels = st.dictionaries(
    st.from_regex(r"[a-z]([a-z0-9]{0,9}/[a-z]{1,9})?", fullmatch=True),
    st.from_regex(r"[a-z0-9]{0,9}", fullmatch=True),
    max_size=2,
)
object_names = st.from_regex(r"[a-z][a-z0-9-]{0,9}[a-z0-9]", fullmatch=True)
sizes = st.from_regex(r"[1-9][0-9]{0,3}(Mi|Gi)", fullmatch=True)
volumes = st.one_of(
    st.builds(Claim, claim=object_names, path=st.just("/a"), read_only=st.booleans()),
    st.builds(NewClaim, size=sizes, path=st.just("/b"), access=st.sampled_from(["", "RWX"])),
    st.builds(EmptyDir, path=st.just("/c"), size=st.just("") | sizes),
    st.builds(HostPath, source=st.just("/x"), path=st.just("/d"), read_only=st.booleans()),
)
secrets = st.one_of(
    st.builds(SecretVariables, secret=object_names),
    st.builds(SecretVariable, secret=object_names, key=object_names, variable=env_names),
    st.builds(SecretFiles, secret=object_names, path=st.just("/e")),
)
pods = st.builds(
    PodSpec,
    image=object_names,
    namespace=st.just("") | object_names,
    cpus=st.just("") | st.from_regex(r"[1-9][0-9]{0,2}m?", fullmatch=True),
    memory=st.just("") | sizes,
    gpus=st.integers(0, 8),
    node_selector=labels,
    tolerations=st.lists(st.builds(Toleration, key=object_names), max_size=2).map(tuple),
    spread=st.sampled_from(SPREADS),
    pull_secrets=st.lists(object_names, max_size=2).map(tuple),
    secrets=st.lists(secrets, max_size=2, unique_by=lambda s: getattr(s, "path", id(s))).map(tuple),
    volumes=st.lists(volumes, max_size=3, unique_by=lambda v: v.path).map(tuple),
    labels=labels,
    annotations=labels,
    ttl_s=st.none() | seconds,
    in_image=st.booleans(),
    run_as=st.none() | st.integers(0, 70000),
    patch=st.none()
    | st.dictionaries(st.just("spec"), st.dictionaries(texts, st.none() | texts | words.map(list))),
)

specs = st.builds(
    JobSpec,
    work=works,
    name=texts,
    engine=texts,
    nodes=st.integers(1, 6),
    procs=st.integers(1, 9),
    env=envs,
    cwd=texts,
    paths=words,
    python=texts,
    start=st.sampled_from(START_METHODS),
    preload=words,
    restarts=st.integers(0, 5),
    timeout_s=st.none() | seconds,
    grace_s=times,
    lease_s=st.none() | times,
    join_timeout_s=st.none() | times,
    detach=st.booleans(),
    pod=st.none() | pods,
)

facts = st.builds(Facts, environ=envs, env=envs, master_addr=st.none() | texts)


@st.composite
def plans(draw: st.DrawFn) -> Plan:
    return make_plan(draw(specs), job_id=draw(texts), now_s=draw(times), facts=draw(facts))


metrics = st.dictionaries(
    texts,
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | texts,
    max_size=4,
)
ranks = st.integers(0, 100)
codes = st.none() | st.integers(-64, 255)
error_infos = st.builds(
    results.ErrorInfo,
    type=texts,
    message=texts,
    traceback=texts,
    file=texts,
    line=ranks,
    source=texts,
)
verdicts = st.builds(
    status.Verdict,
    kind=st.sampled_from(status.FailureKind),
    message=texts,
    rank=st.none() | ranks,
    node=st.none() | ranks,
    at_s=times,
    exit_code=codes,
    others=st.dictionaries(texts, ranks, max_size=3),
)
job_statuses = st.builds(
    status.JobStatus,
    job_id=texts,
    name=texts,
    engine=texts,
    work=texts,
    phase=st.sampled_from(status.Phase),
    attempt=ranks,
    detach=st.booleans(),
    created_at_s=times,
    ended_at_s=st.none() | times,
    conditions=st.lists(
        st.builds(status.Condition, type=texts, reason=texts, message=texts, since_s=times),
        max_size=3,
    ).map(tuple),
    nodes=st.lists(st.builds(status.NodeStatus, index=ranks, name=texts), max_size=3).map(tuple),
    ranks=st.lists(
        st.builds(
            status.RankStatus, rank=ranks, node=ranks, pid=st.none() | ranks, step=st.none() | ranks
        ),
        max_size=3,
    ).map(tuple),
    progress=st.builds(
        status.Progress,
        step=st.none() | ranks,
        metrics=metrics,
        at_s=times,
        eta_s=st.none() | times,
    ),
    verdict=st.none() | verdicts,
    history=st.lists(verdicts, max_size=2).map(tuple),
    timeline=st.lists(
        st.builds(status.Moment, name=st.sampled_from(MomentName), at_s=times), max_size=3
    ).map(tuple),
)
plain_json = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=6,
)
result_headers = st.builds(
    results.ResultHeader,
    rank=ranks,
    attempt=ranks,
    state=st.sampled_from(["returned", "raised", "exited"]),
    at_s=times,
    python=texts,
    repr=texts,
    json=plain_json,
    is_json=st.booleans(),
    error=st.none() | error_infos,
    exit_code=codes,
)
