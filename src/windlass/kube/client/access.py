"""Requirements of an engine on a cluster: the user's rights in a namespace, and the served kinds.

Contains the table of rights, the Role made from it, and the access reviews. The table lists what
every engine needs, and `make_rights` adds the rights on an engine's own kind. A test compares the
Role in the docs with what `render_role` prints for the engine `kubernetes`. Code must not use a verb
that the table lacks. No cluster-wide right is needed. Kinds that an operator provides are checked
by API version.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from windlass.errors import EngineMissing
from windlass.kube.client.api_errors import ClusterError, Forbidden, NotFound, make_role_hint
from windlass.kube.objects.kinds import JOBS, ObjectKind

TYPE_CHECKING = False
if TYPE_CHECKING:
    from windlass.kube.client.api import Api

_ROLE = "windlass"
_REVIEWS = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
_SELF = "/apis/authentication.k8s.io/v1/selfsubjectreviews"
_RULES = "/apis/authorization.k8s.io/v1/selfsubjectrulesreviews"
_NUM_THREADS = 8
_MAX_NAMED = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Right:
    """Verbs that a job needs on one resource, and why. Jobs also run without the optional ones."""

    group: str = ""
    resource: str  # a subresource is written like `pods/log`
    verbs: tuple[str, ...]
    purpose: str
    optional: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class MissingRight:
    """One verb that the user lacks."""

    right: Right
    verb: str

    @property
    def name(self) -> str:
        return f"{self.verb} {self.right.resource}"


_MAIN_VERBS = ("get", "list", "watch", "create", "patch", "delete")
_RIGHTS = (
    Right(resource="pods", verbs=("list", "watch"), purpose="see where a job's nodes are"),
    Right(resource="pods/log", verbs=("get",), purpose="read logs after the agents have exited"),
    Right(
        resource="pods/portforward",
        verbs=("get", "create"),
        purpose="reach node 0 for live logs, results and uploads",
    ),
    Right(
        resource="secrets",
        verbs=("get", "create"),
        purpose="store the job's plan, agent and keys; get: attach from another machine",
    ),
    Right(resource="services", verbs=("create",), purpose="give a job's nodes DNS names"),
    Right(
        group="networking.k8s.io",
        resource="networkpolicies",
        verbs=("list", "create"),
        purpose="restrict a job's ports to its own pods",
    ),
    Right(
        resource="events",
        verbs=("list",),
        purpose="explain why a job is pending",
        optional=True,
    ),
    Right(
        resource="resourcequotas",
        verbs=("list",),
        purpose="report which quota is exhausted",
        optional=True,
    ),
    Right(
        resource="persistentvolumeclaims",
        verbs=("list", "create"),
        purpose="create requested volumes; report which claim is not bound",
        optional=True,
    ),
    Right(
        group="kueue.x-k8s.io",
        resource="localqueues",
        verbs=("list",),
        purpose="list the Kueue queues",
        optional=True,
    ),
)

# For engines whose objects replace a pod only after it has ended.
END_LOST_PODS = Right(
    resource="pods",
    verbs=("delete",),
    purpose="replace the pod of a lost machine",
    optional=True,
)


_LEASES = Right(
    group=JOBS.group,
    resource=JOBS.plural,
    verbs=("create", "patch", "delete"),
    purpose="clean up after a killed client, with a Job without pods that has a time to live",
    optional=True,
)


def make_rights(kind: ObjectKind, more: Sequence[Right] = ()) -> tuple[Right, ...]:
    """Return the rights of an engine whose jobs are objects of this kind, including `more`."""
    main = Right(
        group=kind.group,
        resource=kind.plural,
        verbs=_MAIN_VERBS,
        purpose="submit, list, follow, cancel and remove jobs",
    )
    leases = () if kind == JOBS else (_LEASES,)  # the main right already covers Jobs
    return (main, *more, *leases, *_RIGHTS)


def render_role(rights: Mapping[str, Sequence[Right]], namespace: str = "") -> str:
    """Return the Role for some engines as YAML, with a comment for each rule.

    `rights` maps each engine to its rights. The Role is named after its engines, so that no Role replaces
    another. Without `namespace`, the user sets it with `kubectl apply -n`.
    """
    where = f" -n {namespace}" if namespace else ""
    name = "-".join((_ROLE, *sorted(rights)))
    lines = [
        "# Rights that a user of Windlass needs in a namespace. Grant them with",
        f"#   kubectl create rolebinding {name} --role={name} --user=NAME{where}",
        "apiVersion: rbac.authorization.k8s.io/v1",
        "kind: Role",
        "metadata:",
        f"  name: {name}",
        *([f"  namespace: {namespace}"] if namespace else []),
        "rules:",
    ]
    for right in dict.fromkeys(right for own in rights.values() for right in own):
        optional = "optional: " if right.optional else ""
        lines += [
            f"  # {optional}{right.purpose}",
            f'  - apiGroups: ["{right.group}"]',
            f'    resources: ["{right.resource}"]',
            f"    verbs: [{', '.join(right.verbs)}]",
        ]
    return "\n".join(lines) + "\n"


def render_reader(kind: ObjectKind) -> str:
    """Return the ClusterRole to read a cluster-scoped kind, as YAML."""
    name = f"{kind.plural}-reader"
    return (
        "# Grant it with\n"
        f"#   kubectl create clusterrolebinding {name} --clusterrole={name} --user=NAME\n"
        "apiVersion: rbac.authorization.k8s.io/v1\n"
        "kind: ClusterRole\n"
        f"metadata: {{name: {name}}}\n"
        "rules:\n"
        f'  - apiGroups: ["{kind.group}"]\n'
        f'    resources: ["{kind.plural}"]\n'
        "    verbs: [get, list]\n"
    )


def check_access(api: Api, *, rights: Sequence[Right]) -> list[MissingRight]:
    """Return the verbs that the user lacks in the namespace, in the order of the table.

    Every user may make access reviews.
    """
    requested = [MissingRight(right=right, verb=verb) for right in rights for verb in right.verbs]
    with ThreadPoolExecutor(_NUM_THREADS) as pool:
        allowed = list(pool.map(lambda one: _is_allowed(api, one), requested))
    return [one for one, has in zip(requested, allowed, strict=True) if not has]


def check_needed(api: Api, *, rights: Sequence[Right]) -> None:
    """Raise `Forbidden` if the user lacks rights that every job requires.

    Usually this takes one request, which lists the user's rules. Rights that the list lacks are checked one
    by one, because some authorizers cannot list everything they allow.
    """
    needed = [right for right in rights if not right.optional]
    try:
        rules = _read_rules(api)
        doubtful = [right for right in needed if not _is_listed(right, rules)]
        missing = check_access(api, rights=doubtful) if doubtful else []
    except Forbidden:
        return  # access reviews are forbidden, so the job's own requests report missing rights
    if missing:
        raise _make_forbidden(missing, api)


def _make_forbidden(missing: Sequence[MissingRight], api: Api) -> Forbidden:
    namespace, hint = api.namespace, make_role_hint(api.engine)
    verbs = ", ".join(one.name for one in missing[:_MAX_NAMED])
    more = len(missing) - _MAX_NAMED
    if more > 0:
        why = f"{verbs} and {more} more things a job needs in namespace {namespace}"
        hint = f"is {namespace} the right --namespace? {hint}"
    else:
        purposes = "; ".join(dict.fromkeys(one.right.purpose for one in missing))
        why = f"{verbs} in namespace {namespace}; a job needs it to {purposes}"
    return Forbidden(f"you may not {why}", hint=hint, code=403, reason="Forbidden")


def _read_rules(api: Api) -> list[Mapping[str, Any]]:
    review = {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SelfSubjectRulesReview",
        "spec": {"namespace": api.namespace},
    }
    answer = api.request("POST", _RULES, body=review)
    return answer.get("status", {}).get("resourceRules") or []


def _is_listed(right: Right, rules: Sequence[Mapping[str, Any]]) -> bool:
    """Return whether the rules grant every verb on all objects of the resource."""
    granted: set[str] = set()
    for rule in rules:
        has_group = {right.group, "*"} & set(rule.get("apiGroups") or ())
        has_resource = {right.resource, "*"} & set(rule.get("resources") or ())
        if has_group and has_resource and not rule.get("resourceNames"):
            granted |= set(rule.get("verbs") or ())
    return "*" in granted or granted >= set(right.verbs)


def _is_allowed(api: Api, one: MissingRight) -> bool:
    resource, _, part = one.right.resource.partition("/")
    return may(api, one.verb, resource, group=one.right.group, part=part, namespace=api.namespace)


def may(
    api: Api, verb: str, resource: str, *, group: str = "", part: str = "", namespace: str = ""
) -> bool:
    """Return whether the user has this right, in a namespace or (by default) in the whole cluster."""
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


def read_identity(api: Api) -> str:
    """Return the user's name as the API server knows it, or an empty string if it is unknown."""
    review = {"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"}
    try:
        answer = api.request("POST", _SELF, body=review)
    except ClusterError:
        return ""
    user = (answer.get("status") or {}).get("userInfo") or {} if isinstance(answer, dict) else {}
    return str(user.get("username", ""))


@dataclass(frozen=True, slots=True, kw_only=True)
class Need:
    """Kind in one API version, and the product that installs it, as `Kubeflow Trainer 2`."""

    kind: ObjectKind
    product: str


def check_needs(api: Api, needs: Iterable[Need]) -> None:
    """Raise `EngineMissing` for the first kind that the cluster does not serve in that version."""
    served: dict[str, set[str]] = {}
    for need in needs:
        version = need.kind.api_version
        if version not in served:
            served[version] = _list_served(api, version)
        if need.kind.plural not in served[version]:
            raise _make_missing(api, need)


def _list_served(api: Api, api_version: str) -> set[str]:
    root = "apis" if "/" in api_version else "api"
    try:
        served = api.request("GET", f"/{root}/{api_version}")
    except NotFound:
        return set()
    return {str(resource.get("name")) for resource in served.get("resources") or ()}


def _make_missing(api: Api, need: Need) -> EngineMissing:
    kind = need.kind
    try:
        versions = api.request("GET", f"/apis/{kind.group}").get("versions") or ()
    except NotFound:
        versions = ()
    there = ", ".join(str(version.get("groupVersion")) for version in versions)
    return EngineMissing(
        f"this cluster does not serve {kind.name} ({kind.api_version})"
        f"{f'; it has {there}' if there else ''}",
        hint=f"install {need.product}, or use `--engine kubernetes`; `windlass engines` lists the engines",
    )
