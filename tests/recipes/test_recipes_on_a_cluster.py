"""Both recipes in pods: under windlass run, as the guide's StatefulSet, and with checkpoints on S3."""

from __future__ import annotations

import json
import os
import re
import secrets
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import torch
import yaml
from recipes.llm_ground import (
    APP,
    LLM_IMAGE,
    PACKAGE,
    LlmGround,
    has_image,
    open_ground,
    write_app,
    write_rows,
)
from recipes.tiny_llama import write_model

import windlass as wl
from windlass import names
from windlass.kube.objects.kinds import PODS, SECRETS
from windlass.recipes import train, train_framework
from windlass.waiting import wait_until

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]  # imports in pods take many seconds

GUIDE_FLAGS = [
    *("--epochs", "2", "--batch", "256", "--samples", "4096", "--features", "128"),
    *("--classes", "4", "--lr", "3e-3", "--seed", "42"),
]  # section 8 of the guide
TINY = "/models/tiny"
OFFLINE = ["--model-local-dir", TINY, "--tokenizer-local-dir", TINY, "--local-files-only"]
SHORT = [
    *("--length", "64", "--epochs", "2", "--lr", "3e-3"),
    *("--scheduler", "constant", "--warmup", "0"),
]
INDEX = "batch.kubernetes.io/job-completion-index"
ONE_THREAD = {
    "OMP_NUM_THREADS": "1"
}  # all pods share one machine, where threads would wait for each other
S3 = {
    # the address as pods see it
    "AWS_ENDPOINT_URL": os.environ.get("WINDLASS_TEST_S3", "http://10.200.0.1:7070"),
    "AWS_ACCESS_KEY_ID": "testbed",
    "AWS_SECRET_ACCESS_KEY": "testbed-secret",
    **ONE_THREAD,
}
STAYS = "training is finished; this pod stays until it is scaled down or deleted"


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write a tiny model, and data in the layout of /models and /data."""
    pytest.importorskip("tokenizers")
    pytest.importorskip("safetensors")
    folder = tmp_path_factory.mktemp("inputs")
    write_model(folder / "models/tiny")
    (folder / "data").mkdir()
    write_rows(folder / "data")
    return folder


@pytest.fixture(scope="module")
def opened(inputs: Path) -> Iterator[LlmGround]:
    if not has_image():
        pytest.skip(f"no node has the image {LLM_IMAGE}")
    with open_ground() as ground:
        ground.upload(inputs, "")
        yield ground


@pytest.fixture
def ground(opened: LlmGround, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> LlmGround:
    """Yield pods with the guide's claims, and an empty project."""
    make_project(tmp_path, monkeypatch, opened.settings)
    return opened


def make_project(folder: Path, monkeypatch: pytest.MonkeyPatch, settings: dict[str, str]) -> None:
    (folder / "windlass.toml").touch()
    monkeypatch.chdir(folder)
    for name, value in settings.items():
        monkeypatch.setenv(name, value)


def windlass(*words: str) -> str:
    return call(sys.executable, "-m", "windlass.cli.main", *words)


def call(*words: str, given: str | None = None) -> str:
    ran = subprocess.run(words, input=given, capture_output=True, text=True, timeout=170)
    assert ran.returncode == 0, ran.stdout[-2000:] + ran.stderr[-2000:]
    return ran.stdout


def wait_for(is_so: Callable[[], object], what: str) -> None:
    assert wait_until(is_so, timeout_s=150, every_s=0.3), f"after 150 s still not: {what}"


def read_losses(lines: bytes) -> dict[int, float]:
    metrics = [line for line in map(json.loads, lines.splitlines()) if line["event"] == "metrics"]
    return {line["step"]: line["metrics"]["loss"] for line in metrics if "loss" in line["metrics"]}


def test_the_smoke_test_in_pods_that_have_no_windlass(space, monkeypatch, tmp_path):
    make_project(tmp_path, monkeypatch, space.settings)
    flags = ["-e", "kubernetes", "--nodes", "2", "-m", "windlass.recipes.train"]
    text = windlass("run", *flags, "--", *GUIDE_FLAGS)  # the flags of the guide
    lines = re.findall(r"(\[(?:DDP|TRAIN|EPOCH|DONE)\].*)", text)
    assert lines[0].startswith("[DDP] world_size=2 nodes=2 device=cpu")
    assert [line[:15] for line in lines if "[EPOCH]" in line] == [
        "[EPOCH] epoch=1",
        "[EPOCH] epoch=2",
    ]
    assert lines[-1].startswith("[DONE] steps=32 epochs=2")


def test_fine_tuning_survives_a_deleted_pod(ground, inputs, tmp_path):
    """A new pod replaces one of two offline pods. The results are those of an undisturbed run."""
    flags = [*SHORT, "--batch", "2", "--log-every", "1", "--run-id", "deleted"]
    often = ["--checkpoint-every", "1"]  # the rest takes several seconds
    module = "-m windlass.recipes.train_framework"
    job = wl.submit(module, [*OFFLINE, *flags, *often], nodes=2, env=ONE_THREAD)
    wait_for(lambda: ground.files.read("/out/deleted/latest/manifest.json"), "a checkpoint")
    labels = f"{names.LABEL_JOB}={job.id},{INDEX}=1"
    (pod,) = ground.api.list(PODS, labels=labels)
    ground.api.delete(PODS, pod["metadata"]["name"], grace_s=0)
    job.results(timeout_s=200)
    text = "\n".join(line.text for line in job.logs())
    starts = re.findall(r"\[DDP\] world_size=2 nodes=2 .*attempt=(\d+) step=(\d+)/", text)
    assert [attempt for attempt, _ in starts] == ["0", "1"], text
    resumed_from = int(starts[1][1])
    assert resumed_from > 0
    assert re.findall(r"\[EPOCH\] epoch=(\d) .*val_perplexity=", text) == ["1", "2"]
    assert ground.files.read("/out/deleted/best/manifest.json")
    assert {"rank-0", "rank-1"} < set(ground.files.list("/out/deleted/epoch-2"))

    here = [f"--model-local-dir={inputs}{TINY}", f"--train-file={inputs}/data/train.jsonl"]
    here += [f"--val-file={inputs}/data/val.jsonl", f"--out={tmp_path}/out", "--checkpoint-every=0"]
    train_framework.main([*here, *flags])
    alone = read_losses((tmp_path / "out/deleted/metrics.jsonl").read_bytes())
    losses = read_losses(ground.files.read("/out/deleted/metrics.jsonl"))
    # The last steps before the pod was deleted may be missing.
    assert {step for step in alone if step > resumed_from} <= losses.keys()
    assert losses == pytest.approx({step: alone[step] for step in losses}, abs=1e-4)
    ground.download("/out/deleted/export/best", tmp_path / "exported")
    check_same_weights(tmp_path / "exported", tmp_path / "out/deleted/export/best")


def check_same_weights(folder: Path, other: Path) -> None:
    from transformers import AutoModelForCausalLM

    ours, theirs = (AutoModelForCausalLM.from_pretrained(path) for path in (folder, other))
    for name, weight in ours.state_dict().items():
        torch.testing.assert_close(weight, theirs.state_dict()[name], atol=1e-4, rtol=1e-4)


# -- the guide's StatefulSet -----------------------------------------------------------------------


@pytest.fixture
def guide(ground: LlmGround, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> LlmGround:
    """Return the ground with the guide's Secret, and with the recipes' /app on a claim."""
    if shutil.which("kubectl") is None:
        pytest.skip("needs kubectl on the PATH")
    monkeypatch.delenv("WINDLASS_VOLUMES")  # an export has the guide's claims by default
    write_app(tmp_path / APP)
    ground.upload(tmp_path / APP, f"/{APP}")
    token = {"metadata": {"name": "hf-token"}, "stringData": {"HUGGINGFACE_HUB_TOKEN": "hf_guide"}}
    ground.api.apply(SECRETS, token)
    return ground


@contextmanager
def applied(ground: LlmGround, *words: str) -> Iterator[list[dict[str, Any]]]:
    """Apply what an export prints with kubectl, and delete it on exit."""
    variables = {"PYTHONPATH": f"/{APP}/{PACKAGE}", **ONE_THREAD}
    env = [word for name, value in variables.items() for word in ("--env", f"{name}={value}")]
    flags = ["-e", "statefulset", "--nodes", "2", "--volume", f"{APP}:/{APP}", *env]
    text = windlass("export", *flags, *words)
    kubectl(ground, "apply", "-f", "-", given=text)
    try:
        yield list(yaml.safe_load_all(text))
    finally:
        kubectl(ground, "delete", "-f", "-", given=text)


def kubectl(ground: LlmGround, *words: str, given: str | None = None) -> str:
    return call("kubectl", "-n", ground.api.namespace, *words, given=given)


def wait_for_the_end(ground: LlmGround) -> str:
    """Wait until both pods have ended, and return the output of the first one."""
    pods = ("train-llm-0", "train-llm-1")

    def are_done() -> bool:
        return all(STAYS in read_pod(ground, pod) for pod in pods)

    is_so = wait_until(are_done, timeout_s=300, every_s=0.5)
    assert is_so, "\n\n".join(f"{pod}:\n{read_pod(ground, pod)[-4000:]}" for pod in pods)
    return read_pod(ground, pods[0])


def read_pod(ground: LlmGround, pod: str) -> str:
    """Return the output of a pod.

    torchrun alone gives up if a peer is late, and its container restarts.
    """
    logs = ["logs", pod, "-c", "trainer", "--ignore-errors"]
    path = "jsonpath={.status.containerStatuses[0].restartCount}"
    num_restarts = kubectl(ground, "get", "pod", pod, "--ignore-not-found", "-o", path)
    if not num_restarts:
        return ""
    before = kubectl(ground, *logs, "--previous") if num_restarts != "0" else ""
    return before + kubectl(ground, *logs)


def test_the_guides_stateful_set_fine_tunes_to_its_end(guide):
    flags = [*OFFLINE, *SHORT, "--batch", "8", "--run-id", "guide"]
    work = ["-m", "windlass.recipes.train_framework", "--", *flags]
    with applied(guide, *work) as documents:
        named = [(document["kind"], document["metadata"]["name"]) for document in documents]
        assert named == [("Service", "train-rdzv"), ("StatefulSet", "train-llm")]
        text = wait_for_the_end(guide)
        variables = kubectl(guide, "exec", "train-llm-1", "-c", "trainer", "--", "env")
    assert re.search(r"\[DDP\] world_size=2 nodes=2 .* step=0/", text)
    assert re.findall(r"\[EPOCH\] epoch=(\d) .*val_perplexity=", text) == ["1", "2"]
    assert "[EXPORT] /out/guide/export/final" in text
    assert {"HUGGINGFACE_HUB_TOKEN=hf_guide", "HF_TOKEN=hf_guide"} < set(variables.splitlines())
    assert {"rank-0", "rank-1"} < set(guide.files.list("/out/guide/epoch-1"))
    assert guide.files.read("/out/guide/best/manifest.json")


def test_section_8_of_the_guide_is_the_same_with_train_py(guide):
    script = ["--in-image", "/app/k8s-training/k8s/train.py", "--", *GUIDE_FLAGS]
    with applied(guide, *script):
        text = wait_for_the_end(guide)
    assert re.search(r"^\[DDP\] world_size=2 nodes=2 .* step=0/32$", text, flags=re.MULTILINE)
    assert len(re.findall(r"^\[EPOCH\]", text, flags=re.MULTILINE)) == 2
    assert "[DONE] steps=32 epochs=2" in text
    assert "out=/out/smoke" in text


# -- S3 --------------------------------------------------------------------------------------------


@pytest.fixture
def store(ground: LlmGround) -> str:
    """Yield a folder of the S3 server, in a bucket that does not exist yet."""
    parts = urlsplit(S3["AWS_ENDPOINT_URL"])
    try:
        socket.create_connection((parts.hostname or "", parts.port or 80), timeout=2).close()
    except OSError:
        pytest.skip(f"no S3 server at {parts.geturl()}: `testbed s3` starts one")
    return f"s3://windlass-{secrets.token_hex(4)}/runs"


def make_resumption() -> Any:
    """Return a function that is defined in a function, and is therefore sent by value."""

    def resume(words: list[str], url: str) -> list[str]:
        """Resume the smoke test. Return what is at its URL, and remove it with its bucket."""
        import fsspec

        from windlass.recipes.train import SmokeTrainer

        trainer = SmokeTrainer(words)
        trainer.fit()
        store, folder = fsspec.url_to_fs(url)
        names = sorted(store.ls(f"{folder}/smoke", detail=False))
        trainer.context.barrier()
        if trainer.context.is_main:
            store.rm(folder.partition("/")[0], recursive=True)
        return [name.rpartition("/")[2] for name in names]

    return resume


def test_checkpoints_on_s3_are_loaded_at_another_world_size(store, tmp_path, capsys):
    words = ["--epochs", "2", "--log-every", "4", "--scheduler", "constant"]
    there = [*words, "--out", store, "--checkpoint-every", "16", "--keep", "1"]
    half = wl.submit("-m windlass.recipes.train", [*there, "--steps", "18"], nodes=2, env=S3)
    half.results(timeout_s=120)
    job = wl.submit(make_resumption(), (there, store), procs=1, env=S3)
    found = job.results(timeout_s=120)
    assert {"latest", "step-32", "epoch-2", "best"} <= set(found[0])
    assert "step-18" not in found[0]
    text = "\n".join(line.text for line in job.logs())
    assert re.search(r"\[DDP\] world_size=1 nodes=1 .* step=18/32", text), text
    train.main([*words, f"--out={tmp_path}"])
    ends = [
        [float(number) for number in re.findall(r"\[DONE\].* loss=(\S+) best=(\S+)", output)[0]]
        for output in (text, capsys.readouterr().out)
    ]
    assert ends[0] == pytest.approx(ends[1], abs=1e-5)
