"""`windlass doctor` on the command line, for this machine and for a cluster."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from cli.process import Ran
from kube.users import make_kubeconfig, new_namespace

from windlass.cli.verbs.doctor import _show_more
from windlass.engines.dialects.kubernetes import KUBERNETES
from windlass.engines.dialects.pytorchjob import PYTORCHJOB
from windlass.engines.dialects.trainjob import TRAINJOB
from windlass.engines.engine_table import engine_names, find_dialect
from windlass.kube.client.access import render_reader, render_role
from windlass.kube.objects.kinds import CLUSTER_TRAINING_RUNTIMES
from windlass.observe.doctor import Check

Cli = Callable[..., Ran]


def _without_cluster(folder: Path) -> dict[str, str]:
    return {"KUBECONFIG": str(folder / "none"), "HOME": str(folder), "KUBERNETES_SERVICE_HOST": ""}


def test_unreachable_cluster(windlass: Cli, tmp_path: Path) -> None:
    ran = windlass("doctor", "-e", "kubernetes", env=_without_cluster(tmp_path))
    assert ran.code == 3
    assert ran.out.startswith("missing  cluster")
    assert "-> " in ran.out
    assert "jobs cannot run without: cluster" in ran.err
    (check,) = windlass("doctor", "-e", "kubernetes", "--json", env=_without_cluster(tmp_path)).json
    assert (check["name"], check["state"], check["needed"]) == ("cluster", "missing", True)


def test_deep_needs_a_cluster(windlass: Cli) -> None:
    ran = windlass("doctor", "--deep")
    assert ran.code == 2
    assert "windlass doctor -e kubernetes --deep" in ran.err


def test_the_role_of_an_engine_is_printed_without_a_cluster(windlass: Cli, tmp_path: Path) -> None:
    words = ("doctor", "-e", "pytorchjob", "--role", "--namespace", "team")
    ran = windlass(*words, env=_without_cluster(tmp_path))
    assert (ran.code, ran.out) == (0, render_role({"pytorchjob": PYTORCHJOB.rights}, "team"))
    assert windlass(*words, "--json", env=_without_cluster(tmp_path)).json == yaml.safe_load(
        ran.out
    )
    ran = windlass("doctor", "--role")
    assert (ran.code, "windlass doctor -e kubernetes --role" in ran.err) == (2, True)


def test_roles_of_several_engines_are_joined_under_unique_names(windlass: Cli) -> None:
    def role_of(engines: str) -> dict[str, Any]:
        ran = windlass("doctor", "--role", "-e", engines)
        assert ran.code == 0, ran.err
        role = yaml.safe_load(ran.out)
        assert f"--role={role['metadata']['name']} " in ran.out
        return role

    names = [*filter(find_dialect, engine_names()), "statefulset"]
    roles = {name: role_of(name) for name in names}
    assert len({role["metadata"]["name"] for role in roles.values()}) == len(names)
    union = role_of("raycluster, kubernetes")
    assert union["metadata"]["name"] == "windlass-kubernetes-raycluster"
    for name in ("kubernetes", "raycluster"):
        assert all(rule in union["rules"] for rule in roles[name]["rules"])
    assert len(union["rules"]) < sum(
        len(roles[name]["rules"]) for name in ("kubernetes", "raycluster")
    )
    granted = {resource for rule in roles["statefulset"]["rules"] for resource in rule["resources"]}
    assert {"statefulsets", "services", "configmaps"} <= granted
    assert "secrets" not in granted
    wrong = windlass("doctor", "--role", "-e", "kubernetes,nowhere")
    assert (wrong.code, "unknown engine 'nowhere'" in wrong.err) == (2, True)


def test_unknown_engine(windlass: Cli) -> None:
    ran = windlass("doctor", "-e", "nowhere")
    assert ran.code == 2
    assert "unknown engine 'nowhere'" in ran.err
    assert "kubernetes" in ran.err


def test_printed_roles_are_valid_for_kubectl(capsys) -> None:
    roles = [
        render_role({"trainjob": TRAINJOB.rights}, "space"),
        render_reader(CLUSTER_TRAINING_RUNTIMES),
    ]
    _show_more([Check(name="x", state="warn", found="", more=role) for role in roles])
    kinds = [role["kind"] for role in yaml.safe_load_all(capsys.readouterr().out)]
    assert kinds == ["Role", "ClusterRole"]


@pytest.mark.cluster
def test_missing_permissions_are_printed_as_a_role(windlass: Cli, tmp_path: Path) -> None:
    role = yaml.safe_load(render_role({"kubernetes": KUBERNETES.rights}))
    rules = [r for r in role["rules"] if r["resources"] != ["jobs"]]
    with new_namespace() as api:
        env = {"KUBECONFIG": str(make_kubeconfig(api, rules, tmp_path))}
        words = ("doctor", "-e", "kubernetes", "--namespace", api.namespace)
        ran = windlass(*words, env=env)
        (rights,) = (c for c in windlass(*words, "--json", env=env).json if c["name"] == "rights")
    assert ran.code == 3
    assert "jobs (get list watch create patch delete)" in ran.out
    checks, _, role = ran.out.partition("\n# Rights that a user of Windlass needs")
    assert "missing  rights" in checks
    assert yaml.safe_load("#" + role)["metadata"] == {
        "name": "windlass-kubernetes",
        "namespace": api.namespace,
    }
    assert rights["more"] == render_role({"kubernetes": KUBERNETES.rights}, api.namespace)
