"""Why the API server would not let the Job have its pods: quota, Pod Security, limits, webhooks, accounts.

Pure: the text of a FailedCreate event in, plain words out. The same refusals meet whoever makes a pod
himself, so the text alone is asked for.
"""

from __future__ import annotations

import re

from windlass.kube.blocker import (
    CREATE_FAILED,
    DENIED,
    POD_SECURITY,
    QUOTA,
    SERVICE_ACCOUNT,
)
from windlass.kube.unschedulable import Diagnosis

_PREFIX = re.compile(r'^Error creating: (?:pods "[^"]*" is forbidden: )?')
_QUOTA = re.compile(
    r"exceeded quota: (?P<name>[^,]+), requested: (?P<requested>.*?), "
    r"used: (?P<used>.*?), limited: (?P<limited>.*)"
)
_UNSAID = re.compile(r"failed quota: (?P<name>[^:]+): must specify (?P<what>.*?)(?: for: .*)?$")
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
_FLAGS = {"cpu": "--cpus", "memory": "--memory", "nvidia.com/gpu": "--gpus", "pods": "--nodes"}


def diagnose_create(text: str) -> Diagnosis:
    """What the API server objected to, and whom to ask."""
    plain = _PREFIX.sub("", " ".join(text.split()))
    for read in (_read_quota, _read_unsaid, _read_security, _read_account, _read_denial):
        if blocker := read(plain):
            return blocker
    if _LIMIT.search(plain):
        message = f"the namespace's LimitRange forbids these pods: {plain}"
        return Diagnosis(reason=DENIED, message=message, hint=f"change {_flags_in(plain)}")
    message = f"Kubernetes could not create the pods: {plain}"
    return Diagnosis(reason=CREATE_FAILED, message=message, hint="ask an admin of the cluster")


def _read_quota(text: str) -> Diagnosis | None:
    match = _QUOTA.search(text)
    if match is None:
        return None
    requested, used, limited = (
        _read_amounts(match[key]) for key in ("requested", "used", "limited")
    )
    parts = [
        f"a pod wants {amount} {name}, {used.get(name, '?')} of {limited.get(name, '?')} are used"
        for name, amount in requested.items()
    ]
    return Diagnosis(
        reason=QUOTA,
        message=f'the namespace\'s quota "{match["name"]}" leaves too little: {"; ".join(parts)}',
        hint=f"ask for less with {_flags_in(match['requested'])} or --nodes, end other jobs "
        "(windlass ls), or ask for more quota",
    )


def _read_amounts(text: str) -> dict[str, str]:
    pairs = (part.partition("=") for part in text.split(","))
    return {name.strip(): amount.strip() for name, _, amount in pairs}


def _read_unsaid(text: str) -> Diagnosis | None:
    match = _UNSAID.search(text)
    if match is None:
        return None
    return Diagnosis(
        reason=QUOTA,
        message=f'the namespace\'s quota "{match["name"]}" wants every pod to say its {match["what"]}',
        hint=f"say it with {_flags_in(match['what'])}",
    )


def _read_security(text: str) -> Diagnosis | None:
    match = _SECURITY.search(text)
    if match is None:
        return None
    return Diagnosis(
        reason=POD_SECURITY,
        message=f'the namespace\'s Pod Security level "{match["level"]}" forbids these pods: {match["why"]}',
        hint="leave out --run-as and --patch, which are restricted without them; or use another --namespace",
    )


def _read_account(text: str) -> Diagnosis | None:
    match = _ACCOUNT.search(text)
    if match is None:
        return None
    return Diagnosis(
        reason=SERVICE_ACCOUNT,
        message=f'there is no service account "{match["name"]}" in the job\'s namespace',
        hint="correct --service-account, or leave it out",
    )


def _read_denial(text: str) -> Diagnosis | None:
    """A webhook or a policy said no; its own words are all that anybody knows."""
    for pattern, kind in ((_WEBHOOK, "webhook"), (_POLICY, "policy")):
        if match := pattern.search(text):
            return Diagnosis(
                reason=DENIED,
                message=f'the cluster\'s {kind} "{match["name"]}" denied the pods: {match["why"]}',
                hint="do what it asks (--label, --annotation or --patch), or ask who runs it",
            )
    if match := _CALL.search(text):
        return Diagnosis(
            reason=DENIED,
            message=f'the cluster\'s webhook "{match["name"]}" does not answer: {match["why"]}',
            hint="ask an admin of the cluster: pods cannot be created until it does",
        )
    return None


def _flags_in(text: str) -> str:
    return ", ".join(flag for word, flag in _FLAGS.items() if word in text) or "--patch"
