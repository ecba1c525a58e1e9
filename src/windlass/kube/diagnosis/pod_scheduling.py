"""Diagnoses of pods that were not scheduled or created, from messages of Kubernetes.

These functions are pure. The scheduler's message is `0/5 nodes are available: 3 Insufficient
nvidia.com/gpu, 2 node(s) had untolerated taint {a: b}. preemption: ...`. A FailedCreate event names
quota, Pod Security, limits, webhooks or accounts. The messages differ between versions. Unknown ones
are passed on unchanged.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from windlass.errors import SpecError
from windlass.kube.diagnosis.blocker import (
    CREATE_FAILED,
    DENIED,
    POD_SECURITY,
    QUOTA,
    SERVICE_ACCOUNT,
    UNSCHEDULABLE,
    VOLUME,
    WHEN_OTHERS_END,
    flag_for,
)
from windlass.kube.objects.fields import Object, container_spec_of
from windlass.spec.node_resources import BILLION, read_quantity

_SENTENCE = re.compile(r"\d+/(?P<num_nodes>\d+) nodes are available: (?P<causes>.*)", re.DOTALL)
_TAIL = re.compile(r"\. (?:no new claims to deallocate|preemption: |not found$)|\.+\s*$")
_MAX_TAINTS = 3
_TOO_BIG = "Preemption is not helpful"
_PREFIX = re.compile(r'^Error creating: (?:pods "[^"]*" is forbidden: )?')
_QUOTA = re.compile(
    r"exceeded quota: (?P<name>[^,]+), requested: (?P<requested>.*?), "
    r"used: (?P<used>.*?), limited: (?P<limited>.*)"
)
_UNSET = re.compile(r"failed quota: (?P<name>[^:]+): must specify (?P<what>.*?)(?: for: .*)?$")
_ACCOUNT = re.compile(r'serviceaccount "(?P<name>[^"]+)" not found')
_SECURITY = re.compile(r'violates PodSecurity "(?P<level>[^"]+)": (?P<why>.*)', re.DOTALL)
_LIMIT = re.compile(r"(?:maximum|minimum|max limit)\b.*\bper (?:Container|Pod)\b", re.DOTALL)
_WEBHOOK = re.compile(
    r'admission webhook "(?P<name>[^"]+)" denied the request: (?P<why>.*)', re.DOTALL
)
_POLICY = re.compile(
    r"ValidatingAdmissionPolicy '(?P<name>[^']+)'.* denied request: (?P<why>.*)", re.DOTALL
)
_CALL = re.compile(r'failed calling webhook "(?P<name>[^"]+)": (?P<why>.*)', re.DOTALL)
_FLAGS_IN_SENTENCE = {
    "cpu": "--cpus",
    "memory": "--memory",
    "nvidia.com/gpu": "--gpus",
    "pods": "--nodes",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Cause:
    """Reason why nodes are unsuitable, such as `Insufficient cpu` on 3 nodes.

    Without a number, it applies to all nodes.
    """

    text: str
    num_nodes: int | None = None

    @property
    def resource(self) -> str:
        return self.text.removeprefix("Insufficient ") if "Insufficient " in self.text else ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnosis:
    """One problem: a reason for programs, a message and a hint."""

    reason: str
    message: str
    hint: str


def read_causes(sentence: str) -> tuple[int, tuple[Cause, ...]]:
    """Return the number of nodes, and the causes that make them unsuitable."""
    match = _SENTENCE.match(sentence.strip())
    if match is None:
        return 0, (Cause(text=sentence.strip()),) if sentence.strip() else ()
    causes = _TAIL.split(match["causes"], maxsplit=1)[0]
    return int(match["num_nodes"]), tuple(map(_read_cause, re.split(r", (?=\d+ )", causes)))


def _read_cause(text: str) -> Cause:
    match = re.fullmatch(r"(\d+) (.*)", text.strip(), re.DOTALL)
    return Cause(text=match[2], num_nodes=int(match[1])) if match else Cause(text=text.strip())


def diagnose(pod: Object, sentence: str, *, nodes: Sequence[Object] = ()) -> Diagnosis:
    """Return why a pod cannot be scheduled, with the size of the biggest node if `nodes` are given."""
    num_nodes, causes = read_causes(sentence)
    for cause in causes:
        if blocker := _diagnose_volume(cause.text):
            return blocker
    lacking = [cause for cause in causes if cause.resource]
    if not lacking:
        return _diagnose_place(pod, num_nodes, causes, nodes)
    wanted = ", ".join(
        f"{amount} {cause.resource}"
        for cause in lacking
        if (amount := _wanted(pod, cause.resource))
    )
    is_too_big = _TOO_BIG in sentence and "No preemption victims" not in sentence
    counts = "; ".join(_count_lacking(cause, num_nodes, is_too_big) for cause in lacking)
    biggest = _describe_biggest(nodes, [cause.resource for cause in lacking])
    others = "".join(f"; {_describe_cause(c, num_nodes)}" for c in causes if not c.resource)
    asks = f"each pod requests {wanted}" if wanted else "each pod requests more"
    hint = _hint_lacking([cause.resource for cause in lacking], is_too_big)
    if any("untolerated taint" in cause.text for cause in causes):
        taints = find_taints([cause.text for cause in causes], nodes)
        hint += f"; if the job may use tainted nodes: {_advise_toleration(taints)}"
    return Diagnosis(
        reason=UNSCHEDULABLE, message=f"{asks}, but {counts}{biggest}{others}", hint=hint
    )


def _count_lacking(cause: Cause, num_nodes: int, is_too_big: bool) -> str:
    free = "" if is_too_big else " free"
    return f"{cause.num_nodes} of {num_nodes} nodes do not have enough {cause.resource}{free}"


def _hint_lacking(resources: list[str], is_too_big: bool) -> str:
    flags = ", ".join(dict.fromkeys(flag_for(name) for name in resources))
    if is_too_big:
        return f"no node is large enough; lower {flags} and raise --nodes"
    return (
        f"{WHEN_OTHERS_END}; to start sooner, request less with {flags} or --nodes; "
        "`windlass doctor -e kubernetes` shows what is free"
    )


def _wanted(pod: Object, resource: str) -> str:
    resources = container_spec_of(pod).get("resources") or {}
    amounts = {**(resources.get("limits") or {}), **(resources.get("requests") or {})}
    return str(amounts.get(resource, ""))


def _describe_biggest(nodes: Sequence[Object], resources: list[str]) -> str:
    parts = []
    for resource in resources:
        sizes = [str(n.get("status", {}).get("allocatable", {}).get(resource, "0")) for n in nodes]
        if sizes:
            parts.append(f"{render_amount(max(sizes, key=_size), resource)} {resource}")
    return f"; the biggest node has {', '.join(parts)}" if parts else ""


def _size(text: str) -> int:
    try:
        return read_quantity(text)
    except SpecError:
        return 0


def render_amount(text: str, resource: str) -> str:
    """Return a readable quantity, because nodes report memory in Ki."""
    if "memory" in resource or "storage" in resource:
        return f"{_size(text) / BILLION / (1 << 30):.4g}Gi"
    return text


def _diagnose_volume(text: str) -> Diagnosis | None:
    if match := re.search(r'persistentvolumeclaim "([^"]+)" (.*)', text):
        name, what = match.groups()
        hint = f"create the claim {name} in the job's namespace, or correct its name in --volume"
        message = f'the volume claim "{name}" is {_describe_claim_problem(what)}'
        return Diagnosis(reason=VOLUME, message=message, hint=hint)
    if "unbound" in text and "PersistentVolumeClaim" in text:
        message = "a volume claim is not bound yet: nothing has provided its volume"
        hint = "`kubectl describe pvc` shows why. Often its storage class does not exist"
        return Diagnosis(reason=VOLUME, message=message, hint=hint)
    if "volume node affinity" in text or "available persistent volumes" in text:
        message = f"its volume can only be used on other nodes: {text}"
        hint = "use a volume that all nodes can reach (ReadWriteMany), or fewer --nodes"
        return Diagnosis(reason=VOLUME, message=message, hint=hint)
    return None


def _describe_claim_problem(text: str) -> str:
    text = text.rstrip(". ")
    return "missing" if text == "not found" else text.removeprefix("is ")


_PLACES = (
    ("node affinity/selector", "do not have the requested labels", "--node-selector"),
    ("untolerated taint", "have an untolerated taint", "--toleration"),
    ("were unschedulable", "do not accept new pods", ""),
    ("Too many pods", "run their maximum number of pods", ""),
    ("topology spread", "would break the spread over hosts", "--spread soft"),
    ("anti-affinity", "would break the spread over hosts", "--spread soft"),
    ("free ports", "have no free port of that number", ""),
)


def _describe_cause(cause: Cause, num_nodes: int) -> str:
    for mark, words, _ in _PLACES:
        if mark in cause.text and cause.num_nodes is not None:
            taint = re.search(r"\{[^}]*\}", cause.text)
            detail = f" {taint[0]}" if taint else ""
            return f"{cause.num_nodes} of {num_nodes} nodes {words}{detail}"
    count = f"{cause.num_nodes} of {num_nodes}: " if cause.num_nodes is not None else ""
    return f"{count}{cause.text}"


def find_taints(texts: Sequence[str], nodes: Sequence[Object] = ()) -> list[str]:
    """Return taints in the format of `--toleration`.

    Reads them from the message or, because newer schedulers do not name them, from the nodes.
    """
    named = [re.search(r"taint \{([^:}]+): ?([^}]*)\}", text) for text in texts]
    pairs = [(match[1].strip(), match[2].strip()) for match in named if match]
    if not pairs and any("untolerated taint" in text for text in texts):
        taints = [t for node in nodes for t in node.get("spec", {}).get("taints") or ()]
        pairs = [
            (str(taint.get("key", "")), str(taint.get("value") or ""))
            for taint in taints
            if taint.get("effect") != "PreferNoSchedule"
            and not str(taint.get("key", "")).startswith("node.kubernetes.io/")
        ]
    return [f"{key}{f'={value}' if value else ''}" for key, value in dict.fromkeys(pairs)]


def _advise_toleration(taints: Sequence[str]) -> str:
    if taints:
        return " ".join(f"--toleration {taint}" for taint in taints[:_MAX_TAINTS])
    return (
        "--toleration (such as nvidia.com/gpu=present; `kubectl describe nodes` shows the taints)"
    )


def _diagnose_place(
    pod: Object, num_nodes: int, causes: tuple[Cause, ...], nodes: Sequence[Object]
) -> Diagnosis:
    texts = [cause.text for cause in causes]
    flags = [f for mark, _, f in _PLACES if f and any(mark in text for text in texts)]
    causes_text = "; ".join(_describe_cause(cause, num_nodes) for cause in causes)
    wanted = pod.get("spec", {}).get("nodeSelector") or {}
    labels = ", ".join(f"{key}={value}" for key, value in wanted.items())
    message = f"no node is suitable: {causes_text}" if causes_text else "no node is suitable"
    if labels and "--node-selector" in flags:
        message += f" (requested: {labels})"
    advice = _advise_toleration(find_taints(texts, nodes))
    flags = [advice if flag == "--toleration" else flag for flag in flags]
    hint = (
        f"change {' and '.join(dict.fromkeys(flags))}" if flags else "ask a cluster administrator"
    )
    return Diagnosis(reason=UNSCHEDULABLE, message=message, hint=hint)


def diagnose_create(text: str) -> Diagnosis:
    """Return why the API server did not create a pod, and what to do about it."""
    plain = _PREFIX.sub("", " ".join(text.split()))
    for read in (_read_quota, _read_unset, _read_security, _read_account, _read_denial):
        if blocker := read(plain):
            return blocker
    if _LIMIT.search(plain):
        message = f"the namespace's LimitRange forbids these pods: {plain}"
        return Diagnosis(reason=DENIED, message=message, hint=f"change {_flags_in(plain)}")
    message = f"Kubernetes could not create the pods: {plain}"
    return Diagnosis(reason=CREATE_FAILED, message=message, hint="ask a cluster administrator")


def _read_quota(text: str) -> Diagnosis | None:
    match = _QUOTA.search(text)
    if match is None:
        return None
    requested, used, limited = (
        _read_amounts(match[key]) for key in ("requested", "used", "limited")
    )
    parts = [
        f"a pod requests {amount} {name}, {used.get(name, '?')} of {limited.get(name, '?')} are used"
        for name, amount in requested.items()
    ]
    return Diagnosis(
        reason=QUOTA,
        message=f'the namespace\'s quota "{match["name"]}" leaves too little: {"; ".join(parts)}',
        hint=f"request less with {_flags_in(match['requested'])} or --nodes, end other jobs "
        "(`windlass ls`), or ask for more quota",
    )


def _read_amounts(text: str) -> dict[str, str]:
    pairs = (part.partition("=") for part in text.split(","))
    return {name.strip(): amount.strip() for name, _, amount in pairs}


def _read_unset(text: str) -> Diagnosis | None:
    match = _UNSET.search(text)
    if match is None:
        return None
    return Diagnosis(
        reason=QUOTA,
        message=f'the namespace\'s quota "{match["name"]}" requires every pod to set {match["what"]}',
        hint=f"set it with {_flags_in(match['what'])}",
    )


def _read_security(text: str) -> Diagnosis | None:
    match = _SECURITY.search(text)
    if match is None:
        return None
    return Diagnosis(
        reason=POD_SECURITY,
        message=f'the namespace\'s Pod Security level "{match["level"]}" forbids these pods: {match["why"]}',
        hint="omit --run-as and --patch (without them, pods are restricted), or use another --namespace",
    )


def _read_account(text: str) -> Diagnosis | None:
    match = _ACCOUNT.search(text)
    if match is None:
        return None
    return Diagnosis(
        reason=SERVICE_ACCOUNT,
        message=f'service account "{match["name"]}" not found in the job\'s namespace',
        hint="correct --service-account, or omit it",
    )


def _read_denial(text: str) -> Diagnosis | None:
    """Read the refusal of a webhook or a policy. Its own message is the only explanation."""
    for pattern, kind in ((_WEBHOOK, "webhook"), (_POLICY, "policy")):
        if match := pattern.search(text):
            return Diagnosis(
                reason=DENIED,
                message=f'the cluster\'s {kind} "{match["name"]}" denied the pods: {match["why"]}',
                hint="satisfy its rule with --label, --annotation or --patch, or ask its owner",
            )
    if match := _CALL.search(text):
        return Diagnosis(
            reason=DENIED,
            message=f'the cluster\'s webhook "{match["name"]}" does not answer: {match["why"]}',
            hint="ask a cluster administrator: no pods can be created until the webhook responds",
        )
    return None


def _flags_in(text: str) -> str:
    return ", ".join(flag for word, flag in _FLAGS_IN_SENTENCE.items() if word in text) or "--patch"
