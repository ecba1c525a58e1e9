"""The rights a user needs: the table, the Role, and the asking."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from kube.users import make_kubeconfig, new_namespace

from windlass.kube.access import RIGHTS, VERBS, check_access, render_role
from windlass.kube.api import Api, connect

ROLE = Path(__file__).parents[2] / "docs" / "engines" / "role.yaml"


def test_the_documented_role_is_the_one_we_print() -> None:
    assert ROLE.read_text() == render_role()


def test_the_role_is_the_table() -> None:
    role = yaml.safe_load(render_role("team"))
    assert (role["kind"], role["metadata"]["namespace"]) == ("Role", "team")
    rules = [(rule["apiGroups"], rule["resources"], tuple(rule["verbs"])) for rule in role["rules"]]
    assert rules == [([right.group], [right.resource], right.verbs) for right in RIGHTS]
    assert [row[0] for row in VERBS] == [right.resource for right in RIGHTS]


def test_nothing_wide_is_asked_for() -> None:
    asked = {verb for right in RIGHTS for verb in right.verbs}
    assert "*" not in asked
    assert "deletecollection" not in asked
    assert all(right.purpose for right in RIGHTS)


@pytest.fixture(scope="module")
def admin() -> Iterator[Api]:
    with new_namespace() as api:
        yield api


def _rules() -> list[dict[str, Any]]:
    rules: list[dict[str, Any]] = yaml.safe_load(render_role())["rules"]
    return rules


def _user(admin: Api, rules: list[dict[str, Any]], folder: Path) -> Api:
    path = make_kubeconfig(admin, rules, folder)
    return connect(namespace=admin.namespace, environ={"KUBECONFIG": str(path)})


@pytest.mark.cluster
def test_a_user_with_the_role_lacks_nothing(admin: Api, tmp_path: Path) -> None:
    assert check_access(_user(admin, _rules(), tmp_path)) == []


@pytest.mark.cluster
def test_each_missing_verb_is_named(admin: Api, tmp_path: Path) -> None:
    rules = _rules()
    rules[0]["verbs"].remove("patch")  # jobs
    del rules[3]  # pods/portforward
    missing = check_access(_user(admin, rules, tmp_path))
    names = [one.name for one in missing]
    assert names == ["patch jobs", "get pods/portforward", "create pods/portforward"]
    assert not any(one.right.optional for one in missing)
