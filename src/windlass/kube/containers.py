"""Why a container does not start though its pod has a node: image, secrets, user, program. Pure.

A pod's JSON in, plain words out. Whether other pods of the job share the trouble is for blockers.py.
"""

from __future__ import annotations

import re

from windlass.kube.blocker import (
    CONTAINER_CONFIG,
    CRASH_LOOP,
    IMAGE_NAME,
    IMAGE_PULL,
    RUNTIME_REFUSED,
    START_ERROR,
)
from windlass.kube.fields import Object, container_of, container_spec_of, container_states
from windlass.kube.pod_template import pull_policy
from windlass.kube.unschedulable import Diagnosis

_PULL = ("ErrImagePull", "ImagePullBackOff", "ErrImageNeverPull", "RegistryUnavailable")
_NAMES = ("InvalidImageName", "ImageInspectError")
_CONFIG = ("CreateContainerConfigError", "CreateContainerError", "RunContainerError")
# What the pull said before the registry's own words.
_PREAMBLE = re.compile(
    r'^(?:Back-off pulling image "[^"]*":? ?|ErrImagePull: |'
    r'(?:rpc error: code = \w+ desc = )|failed to pull and unpack image "[^"]*": |'
    r'failed to resolve reference "[^"]*": |failed to do request: )+'
)
_PORTS = re.compile(r"read \w+ \S+->\S+: ")  # of this one try: no use to anybody
_NAME_PREAMBLE = re.compile(
    r'^(?:Failed to \w+ [^"]*"[^"]*": |couldn\'t parse image name "[^"]*": )+'
)
_PULL_HINTS = (
    (
        ("unauthorized", "denied", "forbidden", "authorization", "401", "403"),
        "the registry wants a login: name the Secret that holds it with --pull-secret",
    ),
    (
        ("not found", "manifest unknown", "does not exist"),
        "there is no such image or tag: correct --image",
    ),
    (
        ("toomanyrequests", "429"),
        "the registry's rate limit: it is tried again, or use --pull-secret",
    ),
    (
        ("no such host", "timeout", "refused", "unreachable", "lookup", "x509", "tls"),
        "the nodes cannot reach that registry: check the host in --image, or ask an admin for one they can",
    ),
    (("no space left",), "the node's disk is full: ask an admin of the cluster"),
)


def diagnose_container(pod: Object) -> Diagnosis | None:
    """What holds a container of this pod up; None when nothing does, or nothing is known yet."""
    for status in container_states(pod):
        waiting = status.get("state", {}).get("waiting") or {}
        reason, text = str(waiting.get("reason", "")), _flat(waiting.get("message"))
        image = _asked_image(pod, str(status.get("name", ""))) or str(status.get("image", ""))
        if reason in _PULL:
            return _diagnose_pull(image, text, reason)
        if reason in _NAMES:
            message = f'"{image}" is not the name of an image: {_NAME_PREAMBLE.sub("", text)}'
            hint = "write --image as HOST/NAME:TAG, the name in small letters"
            return Diagnosis(reason=IMAGE_NAME, message=message, hint=hint)
        if reason in _CONFIG:
            return diagnose_start(image, text) or _diagnose_config(text, reason)
        if reason == "CrashLoopBackOff":
            return _diagnose_crash(status)
    return None


def diagnose_start(image: str, text: str) -> Diagnosis | None:
    """The program is not in the image, or may not be run."""
    if match := re.search(r'exec: "([^"]+)": (.*?)(?:: unknown)?$', text):
        program, why = match.groups()
        return Diagnosis(
            reason=START_ERROR,
            message=f'the image {image} has no "{program}" that can be run: {why}',
            hint="use an image with Python 3.10 or newer in it, or say where it is with --python",
        )
    if "OCI runtime" in text or "shim task" in text:
        message = f"the container of {image} cannot be started: {text}"
        hint = "ask an admin of the cluster: the node's container runtime refused it"
        return Diagnosis(reason=RUNTIME_REFUSED, message=message, hint=hint)
    return None


def _diagnose_pull(image: str, text: str, reason: str) -> Diagnosis:
    words = _PORTS.sub("", _PREAMBLE.sub("", text))
    lower = words.lower()
    hint = next((h for marks, h in _PULL_HINTS if any(m in lower for m in marks)), "")
    if reason == "ErrImageNeverPull":
        words, hint = "it is not on the node, and may not be pulled", "correct --image"
    elif pull_policy(image) == "Always":
        hint = (
            f"{hint or 'check --image'}; its tag may move, so it is looked up in the registry each time: "
            "name a version, and nodes use the image that they have"
        )
    message = f"the image {image} cannot be pulled{f': {words}' if words else ''}"
    return Diagnosis(reason=IMAGE_PULL, message=message, hint=hint or "check --image")


def _diagnose_config(text: str, reason: str) -> Diagnosis:
    hint = "correct it with --secret, --env or --patch"
    if match := re.search(r'(secret|configmap) "([^"]+)" not found', text):
        kind, name = match.groups()
        message = f'there is no {kind} "{name}" in the job\'s namespace'
        hint = f"make it (kubectl create {kind} ...), or correct its name in --secret"
    elif match := re.search(r"couldn't find key (\S+) in (Secret|ConfigMap) (\S+)", text):
        key, kind, name = match.groups()
        message = f'the {kind.lower()} {name} has no key "{key}"'
        hint = f"kubectl describe {kind.lower()} {name.split('/')[-1]} shows its keys; correct --secret"
    elif "runAsNonRoot" in text:
        message = "the image runs as root, which the pod's rules forbid"
        hint = "give a user id with --run-as 1000"
    else:
        message = f"the container cannot be created: {text or reason}"
    return Diagnosis(reason=CONTAINER_CONFIG, message=message, hint=hint)


def _diagnose_crash(status: Object) -> Diagnosis:
    last = (status.get("lastState") or {}).get("terminated") or {}
    words = describe_exit(last)
    message = (
        f"the container ends as soon as it starts, {status.get('restartCount', 0)} times: {words}"
    )
    return Diagnosis(
        reason=CRASH_LOOP, message=message, hint="windlass logs JOB shows its last words"
    )


def describe_exit(terminated: Object) -> str:
    """`exit code 1`, and the container's last line where Kubernetes kept it."""
    lines = str(terminated.get("message") or "").strip().splitlines()
    code = f"exit code {terminated.get('exitCode', '?')}"
    return f"{code}, {lines[-1].strip()}" if lines else code


def image_of(pod: Object) -> str:
    """The image that was asked for: a node reports any of the names it knows the same image by."""
    return str(container_spec_of(pod).get("image") or container_of(pod).get("image", ""))


def _asked_image(pod: Object, container: str) -> str:
    spec = pod.get("spec", {})
    asked = (*(spec.get("initContainers") or ()), *(spec.get("containers") or ()))
    return next((str(one.get("image", "")) for one in asked if one.get("name") == container), "")


def _flat(text: object) -> str:
    return " ".join(str(text or "").split())
