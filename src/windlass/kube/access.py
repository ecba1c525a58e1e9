"""What a user must be allowed to do in a namespace: the one table, the Role made from it, and the asking.

The Role in the docs is what `render_role` prints, and a test compares them. A verb that some code needs and
that is not here is a bug there or here. Nothing cluster-wide is ever needed.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from windlass.kube.api import Api

ROLE_NAME = "windlass"
_REVIEWS = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
_NUM_THREADS = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Right:
    """Verbs on one resource, and what they are for. Without an optional one, only that is lost."""

    group: str = ""
    resource: str  # a part of one as `pods/log`
    verbs: tuple[str, ...]
    purpose: str
    optional: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Missing:
    """One verb that the user does not have."""

    right: Right
    verb: str

    @property
    def name(self) -> str:
        return f"{self.verb} {self.right.resource}"


RIGHTS = (
    Right(
        group="batch",
        resource="jobs",
        verbs=("get", "list", "watch", "create", "patch", "delete"),
        purpose="submit, list, follow, cancel and remove jobs",
    ),
    Right(resource="pods", verbs=("get", "list", "watch"), purpose="see where a job's nodes are"),
    Right(resource="pods/log", verbs=("get",), purpose="logs once the agents are gone"),
    Right(
        resource="pods/portforward",
        verbs=("get", "create"),
        purpose="reach node 0: live logs, results, files that travel",
    ),
    Right(
        resource="secrets",
        verbs=("get", "create"),
        purpose="the job's plan, agent and keys; get: to attach from elsewhere",
    ),
    Right(resource="services", verbs=("create",), purpose="the names of a job's nodes"),
    Right(
        group="networking.k8s.io",
        resource="networkpolicies",
        verbs=("list", "create"),
        purpose="keep strangers off a job's ports",
    ),
    Right(
        resource="events",
        verbs=("list",),
        purpose="say why a job is pending",
        optional=True,
    ),
    Right(
        resource="resourcequotas",
        verbs=("list",),
        purpose="say which quota is used up",
        optional=True,
    ),
    Right(
        resource="persistentvolumeclaims",
        verbs=("get", "list", "create"),
        purpose="volumes that Windlass makes; say which claim is not bound",
        optional=True,
    ),
)
# The same as plain rows: resource, verbs, what for.
VERBS = tuple((right.resource, right.verbs, right.purpose) for right in RIGHTS)


def render_role(namespace: str = "", *, rights: Sequence[Right] = RIGHTS) -> str:
    """The Role as YAML, a comment a rule. Without a namespace `kubectl apply -n` says where."""
    where = f" -n {namespace}" if namespace else ""
    lines = [
        "# What a user of Windlass needs in a namespace. Give it to somebody with",
        f"#   kubectl create rolebinding {ROLE_NAME} --role={ROLE_NAME} --user=NAME{where}",
        "apiVersion: rbac.authorization.k8s.io/v1",
        "kind: Role",
        "metadata:",
        f"  name: {ROLE_NAME}",
        *([f"  namespace: {namespace}"] if namespace else []),
        "rules:",
    ]
    for right in rights:
        optional = "optional: " if right.optional else ""
        lines += [
            f"  # {optional}{right.purpose}",
            f'  - apiGroups: ["{right.group}"]',
            f'    resources: ["{right.resource}"]',
            f"    verbs: [{', '.join(right.verbs)}]",
        ]
    return "\n".join(lines) + "\n"


def check_access(api: Api, *, rights: Sequence[Right] = RIGHTS) -> list[Missing]:
    """The verbs that the user lacks in the namespace, in the order of the table. Anybody may ask this."""
    asked = [Missing(right=right, verb=verb) for right in rights for verb in right.verbs]
    with ThreadPoolExecutor(_NUM_THREADS) as pool:
        allowed = list(pool.map(lambda one: _is_allowed(api, one), asked))
    return [one for one, has in zip(asked, allowed, strict=True) if not has]


def _is_allowed(api: Api, one: Missing) -> bool:
    resource, _, part = one.right.resource.partition("/")
    return may(api, one.verb, resource, group=one.right.group, part=part, namespace=api.namespace)


def may(
    api: Api, verb: str, resource: str, *, group: str = "", part: str = "", namespace: str = ""
) -> bool:
    """Whether the user may do this; no namespace: in the whole cluster."""
    attributes = {
        "verb": verb,
        "group": group,
        "resource": resource,
        "subresource": part,
        "namespace": namespace,
    }
    review = {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SelfSubjectAccessReview",
        "spec": {"resourceAttributes": {key: value for key, value in attributes.items() if value}},
    }
    answer = api.request("POST", _REVIEWS, body=review)
    return bool(answer.get("status", {}).get("allowed"))
