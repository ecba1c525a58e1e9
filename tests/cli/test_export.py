"""`windlass export`: YAML for kubectl, no private keys unless requested, and clear refusals."""

from __future__ import annotations

import base64
import importlib.metadata
import re
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml
from cli.process import Ran

from windlass.cli.verbs.export import leave_out_keys, render_manifests

Cli = Callable[..., Ran]
IMAGE = ("--image", "torch:1")


@pytest.fixture
def solo(project: Path) -> Path:
    (project / "solo.py").write_text("import os\nprint(os.environ['RANK'])\n")
    return project


def documents_of(ran: Ran) -> list[dict]:
    assert ran.code == 0, ran.err
    return list(yaml.safe_load_all(ran.out))


def test_the_statefulset_recipe(windlass: Cli, solo: Path) -> None:
    ran = windlass("export", "solo.py", "-e", "statefulset", "--nodes", "2", *IMAGE, "--lr", "1")
    documents = documents_of(ran)
    assert [d["kind"] for d in documents] == ["ConfigMap", "Service", "StatefulSet"]
    assert documents[0]["data"]["solo.py"] == (solo / "solo.py").read_text()
    assert "/code/solo.py --lr 1" in ran.out
    assert "- |\n" in ran.out  # the shell script is readable
    assert ran.err == ""


def test_recipe_split_into_the_two_files_of_the_guide(windlass: Cli, solo: Path) -> None:
    words = ("export", "solo.py", "-e", "statefulset", "--name", "My Run", *IMAGE)
    ran = windlass(*words, "--split", "out/k8s")
    assert (ran.code, ran.out.split()) == (
        0,
        ["out/k8s/train-rdzv.yaml", "out/k8s/stateful-set.yaml"],
    )
    first, rest = (list(yaml.safe_load_all((solo / path).read_text())) for path in ran.out.split())
    assert [(one["kind"], one["metadata"]["name"]) for one in first] == [
        ("Service", "my-run-headless")
    ]
    assert [port["port"] for port in first[0]["spec"]["ports"]] == [29500]
    assert [one["kind"] for one in rest] == ["ConfigMap", "StatefulSet"]
    assert rest[-1]["spec"]["serviceName"] == "my-run-headless"
    other = windlass("export", "solo.py", "-e", "kubernetes", *IMAGE, "--split", "out")
    assert (other.code, "--split only works with the engine statefulset" in other.err) == (2, True)


TORCHRUN = (
    "torchrun",
    "--nproc_per_node=4",
    "--tee",
    "3",
    "--max-restarts=2",
    "solo.py",
    "--lr",
    "1",
)


@pytest.mark.parametrize(
    ("words", "kind"),
    [
        (("-e", "statefulset"), "StatefulSet"),
        (("-e", "statefulset", "--plain"), "StatefulSet"),
        (("-e", "kubernetes", "--plain"), "Job"),
    ],
)
def test_a_torchrun_line_is_not_nested(windlass: Cli, solo: Path, words, kind: str) -> None:
    ran = windlass("export", *words, "--nodes", "2", *IMAGE, "--", *TORCHRUN)
    documents = documents_of(ran)
    assert [d["kind"] for d in documents] == ["ConfigMap", "Service", kind]
    [container] = documents[-1]["spec"]["template"]["spec"]["containers"]
    shell = container["command"][-1]
    assert len(re.findall(r"(^|\s)torchrun\s", shell)) == 1
    assert "--tee 3 --max-restarts=2" in shell
    assert shell.count("restarts") == 1
    assert "/code/solo.py --lr 1 &" in shell
    env = {each["name"]: each.get("value") for each in container["env"]}
    assert env["NPROC_PER_NODE"] == "4"
    assert not [name for name in env if name.startswith("PET_")]


def test_command_that_cannot_be_parsed_is_refused(windlass: Cli, solo: Path) -> None:
    for line in (("sh", "-c", "torchrun solo.py"), ("env", "torchrun", "solo.py")):
        ran = windlass("export", "-e", "statefulset", *IMAGE, "--", *line)
        assert ran.code == 2
        assert "is not a torchrun command" in ran.err


def test_other_rendezvous(windlass: Cli, solo: Path) -> None:
    words = ("export", "solo.py", "-e", "statefulset", *IMAGE)
    ran = windlass(*words, "--rdzv-backend", "etcd-v2", "--rdzv-endpoint", "etcd:2379")
    assert "--rdzv-backend=etcd-v2" in ran.out
    ran = windlass(*words, "--rdzv-backend", "etcd-v2")
    assert ran.code == 2
    assert "requires the address of a server" in ran.err


def test_targets_in_the_image_may_be_missing_here(windlass: Cli) -> None:
    words = ("export", "/app/train.py", "-e", "statefulset", *IMAGE)
    ran = windlass(*words, "--in-image")
    assert [d["kind"] for d in documents_of(ran)] == ["Service", "StatefulSet"]
    assert "\n            /app/train.py &" in ran.out
    assert windlass(*words).code == 2


def test_a_function_in_the_image_gets_its_arguments(windlass: Cli) -> None:
    ran = windlass("run", "--dry-run", "--in-image", "/app/train.py::main", "--lr", "1", "--json")
    assert ran.code == 0
    assert ran.json["work"] == {"kind": "function", "name": "main", "file": "/app/train.py"}
    assert windlass("run", "--dry-run", "/app/train.py::main", "--lr", "1").code == 2


def test_a_plain_job(windlass: Cli, solo: Path) -> None:
    words = ("export", "solo.py", "--plain", *IMAGE, "--nodes", "2")
    documents = documents_of(windlass(*words, "-e", "kubernetes", "--name", "My Run"))
    assert [d["kind"] for d in documents] == ["ConfigMap", "Service", "Job"]
    assert documents[-1]["metadata"]["name"] == "my-run"
    unnamed = documents_of(windlass(*words, "-e", "kubernetes"))
    assert re.fullmatch(r"solo-[a-z2-9]{5}", unnamed[-1]["metadata"]["name"])
    ran = windlass(*words)
    assert ran.code == 2
    assert "hint: add -e kubernetes" in ran.err


def test_full_export_has_keys_only_on_request(windlass: Cli, solo: Path) -> None:
    words = ("export", "solo.py", "-e", "kubernetes", *IMAGE, "--nodes", "2")
    ran = windlass(*words)
    documents = documents_of(ran)
    assert documents[-1]["kind"] == "Job"
    assert documents[-1]["spec"]["suspend"] is False
    assert "PRIVATE KEY" not in _decoded(documents)
    assert "--with-keys" in ran.err
    ran = windlass(*words, "--with-keys")
    assert "PRIVATE KEY" in _decoded(documents_of(ran))
    assert ran.err == ""


def _decoded(documents: list[dict]) -> str:
    secrets = [d for d in documents if d["kind"] == "Secret"]
    assert secrets
    values = [value for secret in secrets for value in secret["data"].values()]
    return "".join(base64.b64decode(value).decode("latin-1") for value in values)


def test_default_image_matches_the_local_torch(windlass: Cli, solo: Path) -> None:
    """This also holds after `config set`, which every later command reads."""
    version = importlib.metadata.version("torch").partition("+")[0]
    words = ("export", "solo.py", "-e", "statefulset")
    ran = windlass(*words)
    pod = documents_of(ran)[-1]["spec"]["template"]["spec"]
    image = pod["containers"][0]["image"]
    assert image.startswith(f"pytorch/pytorch:{version}-cuda")
    assert ran.err.count("\n") == 1
    assert image in ran.err
    assert "windlass config set image" in ran.err
    assert windlass("config", "set", "image", "own:1").code == 0
    ran = windlass(*words)
    pod = documents_of(ran)[-1]["spec"]["template"]["spec"]
    assert (pod["containers"][0]["image"], ran.err) == ("own:1", "")


@pytest.mark.parametrize(
    ("words", "says", "hint"),
    [
        (("work.py", "--in-image"), "no image", "windlass config set image"),
        (("work.py", *IMAGE, "--memory", "512"), "less than 1 MiB", "Gi"),
        (("work.py", *IMAGE, "--volume", "/a:/a"), "a folder of the machine", "--allow-host-path"),
        (("work.py", *IMAGE, "--timeout", "5m"), "does not support: timeout", "--timeout"),
        (("work.py", *IMAGE, "--patch", "x: 1"), "the patch has 'x' at its top", "looks like"),
        (("sh", *IMAGE), "can only include a single script", "--in-image"),
    ],
    ids=str,
)
def test_refused(windlass: Cli, words: tuple[str, ...], says: str, hint: str) -> None:
    ran = windlass("export", *words, "-e", "statefulset")
    assert ran.code == 2
    assert says in ran.err
    assert hint in ran.err.partition("hint:")[2]
    assert ran.out == ""


def test_keys_are_recognized_by_name_and_by_content() -> None:
    secret = {
        "kind": "Secret",
        "data": {
            "node.key": base64.b64encode(b"x").decode(),
            "hidden": base64.b64encode(b"-----BEGIN EC PRIVATE KEY-----\n").decode(),
            "plan.json": base64.b64encode(b"{}").decode(),
            "odd": "not base64",
        },
    }
    other = {"kind": "ConfigMap", "data": {"node.key": "x"}}
    assert leave_out_keys([secret, other]) == [
        {"kind": "Secret", "data": {"plan.json": "e30=", "odd": "not base64"}},
        other,
    ]


def test_yaml_reads_back() -> None:
    documents = [{"a": "x\ny\n", "b": ["1", 1, None, "ä"], "c": {"d": "yes", "e": " lead\n"}}]
    assert list(yaml.safe_load_all(render_manifests(documents))) == documents
