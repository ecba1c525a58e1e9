"""The rights a user needs: the table, the Role, and the access check."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from kube.api_server import Answer, connect_to, refuse, serve
from kube.users import make_kubeconfig, new_namespace

from windlass.engines.dialects.kubernetes import KUBERNETES
from windlass.kube.client.access import check_access, check_needed, render_role
from windlass.kube.client.api import Api, connect
from windlass.kube.client.api_errors import Forbidden

RIGHTS = KUBERNETES.rights
ROLE = Path(__file__).parents[2] / "docs" / "engines" / "role.yaml"


def test_documented_role_matches_the_printed_one() -> None:
    assert ROLE.read_text() == render_role({"kubernetes": RIGHTS})


def test_role_matches_the_table() -> None:
    role = yaml.safe_load(render_role({"kubernetes": RIGHTS}, "team"))
    assert (role["kind"], role["metadata"]["namespace"]) == ("Role", "team")
    rules = [(rule["apiGroups"], rule["resources"], tuple(rule["verbs"])) for rule in role["rules"]]
    assert rules == [([right.group], [right.resource], right.verbs) for right in RIGHTS]


def test_no_broad_rights_are_required() -> None:
    asked = {verb for right in RIGHTS for verb in right.verbs}
    assert "*" not in asked
    assert "deletecollection" not in asked
    assert all(right.purpose for right in RIGHTS)


def _answer_rules(rules: list[dict[str, Any]], *, is_incomplete: bool = False) -> Answer:
    status = {"resourceRules": rules, "nonResourceRules": [], "incomplete": is_incomplete}
    return Answer(status=201, body={"status": status})


def _answer_review(*, is_allowed: bool) -> Answer:
    return Answer(status=201, body={"status": {"allowed": is_allowed}})


def test_one_request_if_the_cluster_lists_our_rules(tmp_path: Path) -> None:
    for rules in (_rules(), [{"apiGroups": ["*"], "resources": ["*"], "verbs": ["*"]}]):
        with serve(_answer_rules(rules)) as server:
            check_needed(connect_to(server.url, tmp_path), rights=RIGHTS)
            assert [seen.path.rpartition("/")[2] for seen in server.seen] == [
                "selfsubjectrulesreviews"
            ]


def test_unlisted_rights_are_checked_one_by_one(tmp_path: Path) -> None:
    unlisted = _answer_rules([], is_incomplete=True)
    with serve(unlisted, _answer_review(is_allowed=True)) as server:
        check_needed(connect_to(server.url, tmp_path), rights=RIGHTS)
        needed = [verb for right in RIGHTS if not right.optional for verb in right.verbs]
        assert len(server.seen) == 1 + len(needed)


def test_rule_limited_to_resource_names_is_not_enough(tmp_path: Path) -> None:
    rules = _rules()
    rules[1]["resourceNames"] = ["mine"]  # pods
    with (
        serve(_answer_rules(rules), _answer_review(is_allowed=False)) as server,
        pytest.raises(Forbidden, match="you may not list pods, watch pods in namespace") as caught,
    ):
        check_needed(connect_to(server.url, tmp_path), rights=RIGHTS)
    assert "windlass doctor" in caught.value.hint


def test_cluster_that_forbids_access_reviews(tmp_path: Path) -> None:
    text = (
        'selfsubjectrulesreviews.authorization.k8s.io is forbidden: User "u" cannot create '
        'resource "selfsubjectrulesreviews" in API group "authorization.k8s.io" at the cluster scope'
    )
    with serve(refuse(403, "Forbidden", text)) as server:
        check_needed(connect_to(server.url, tmp_path), rights=RIGHTS)
        assert len(server.seen) == 1


@pytest.fixture(scope="module")
def admin() -> Iterator[Api]:
    with new_namespace() as api:
        yield api


def _rules() -> list[dict[str, Any]]:
    rules: list[dict[str, Any]] = yaml.safe_load(render_role({"kubernetes": RIGHTS}))["rules"]
    return rules


def _user(admin: Api, rules: list[dict[str, Any]], folder: Path) -> Api:
    path = make_kubeconfig(admin, rules, folder)
    return connect(namespace=admin.namespace, environ={"KUBECONFIG": str(path)})


@pytest.mark.cluster
def test_a_user_with_the_role_lacks_nothing(admin: Api, tmp_path: Path) -> None:
    assert check_access(_user(admin, _rules(), tmp_path), rights=RIGHTS) == []


@pytest.mark.cluster
def test_each_missing_verb_is_named(admin: Api, tmp_path: Path) -> None:
    rules = _rules()
    rules[0]["verbs"].remove("patch")  # jobs
    del rules[3]  # pods/portforward
    missing = check_access(_user(admin, rules, tmp_path), rights=RIGHTS)
    names = [one.name for one in missing]
    assert names == ["patch jobs", "get pods/portforward", "create pods/portforward"]
    assert not any(one.right.optional for one in missing)
