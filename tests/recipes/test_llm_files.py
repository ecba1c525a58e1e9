"""Missing files are named immediately, before torch is imported and before a GPU is used."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from recipes.tiny_llama import TINY

from windlass.errors import SpecError
from windlass.recipes.llm.gpu_memory import choose_rows
from windlass.recipes.llm.llama_config import make_hf_config
from windlass.recipes.llm.llm_options import read_llm_options
from windlass.recipes.llm.model_files import (
    check_files,
    download,
    find_token,
    go_offline,
    read_hf_config,
)
from windlass.train.parallel.shape import Shape


def write_weights(path, num_bytes=8):
    header = json.dumps({"w": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}}).encode()
    path.write_bytes(len(header).to_bytes(8, "little") + header + bytes(num_bytes))


@pytest.fixture
def folder(tmp_path):
    """Return a model's folder with all its files, but almost no weights."""
    (tmp_path / "m").mkdir()
    (tmp_path / "m/config.json").write_text(json.dumps(make_hf_config(TINY)))
    (tmp_path / "m/tokenizer.json").write_text("{}")
    (tmp_path / "train.jsonl").write_text('{"text": "a"}\n')
    write_weights(tmp_path / "m/model.safetensors")
    return tmp_path / "m"


def options(*words, environ=None):
    base = ["--model-local-dir", "m", "--train-file", "train.jsonl", "--local-files-only"]
    return read_llm_options([*base, *words], environ or {})


def test_complete_folder_is_accepted(folder):
    check_files(options())


@pytest.mark.parametrize(
    ("missing", "message"),
    [
        ("m/config.json", "file not found: m/config.json"),
        ("m/model.safetensors", "file not found: m/model.safetensors"),
        ("m/tokenizer.json", "no tokenizer found in m"),
        ("train.jsonl", "file not found: train.jsonl"),
    ],
)
def test_a_missing_file_is_named(folder, missing, message):
    (folder.parent / missing).unlink()
    with pytest.raises(SpecError, match=message):
        check_files(options())


def test_weights_that_cannot_be_read_are_named(folder):
    (folder / "model.safetensors").unlink()
    (folder / "model.safetensors").mkdir()  # not readable by any user, including root
    with pytest.raises(
        SpecError, match=r"cannot read the weights in .*model\.safetensors: Is a directory"
    ):
        check_files(options())


def test_truncated_or_incomplete_weights_are_named(folder):
    write_weights(folder / "model.safetensors", num_bytes=7)
    with pytest.raises(SpecError, match=r"model\.safetensors is truncated"):
        check_files(options())
    (folder / "model.safetensors").write_text("version https://git-lfs.github.com/spec/v1\n")
    with pytest.raises(SpecError, match="is truncated") as caught:
        check_files(options())
    assert "git lfs pull" in caught.value.hint
    index = {"weight_map": {"a": "one.safetensors", "b": "two.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    write_weights(folder / "one.safetensors")
    with pytest.raises(SpecError, match=r"file not found: m/two\.safetensors"):
        check_files(options())


def test_folders_and_validation_data_are_named(folder):
    with pytest.raises(SpecError, match="folder not found: /models/llama") as caught:
        check_files(options("--model-local-dir", "/models/llama"))
    assert "check whether the volume is mounted" in caught.value.hint
    with pytest.raises(SpecError, match=r"file not found: val\.jsonl"):
        check_files(options("--val-file", "val.jsonl"))


def test_id_that_cannot_be_downloaded_has_a_hint(folder, monkeypatch):
    hub = pytest.importorskip("huggingface_hub")

    def refuse(*_words, **_options):
        raise OSError("401 Client Error: gated\nand much more")

    monkeypatch.setattr(hub, "snapshot_download", refuse)
    asked = read_llm_options(["--model", "org/name", "--train-file", "train.jsonl"], {})
    with pytest.raises(
        SpecError, match=r"cannot download the model org/name: 401 Client Error: gated"
    ) as caught:
        download(asked, lambda text: None)
    assert "HF_TOKEN" in caught.value.hint
    words = ["--model", "org/name", "--train-file", "train.jsonl", "--local-files-only"]
    monkeypatch.setenv("HF_HUB_CACHE", str(folder))
    with pytest.raises(SpecError, match="org/name is not a folder and is not in the hub's cache"):
        check_files(read_llm_options(words, {}))


def test_it_is_reported_before_torch_is_imported(folder):
    (folder / "model.safetensors").unlink()
    code = (
        "import sys; from windlass.recipes.train_framework import main\n"
        "try: main(['--model-local-dir', 'm', '--train-file', 'train.jsonl'])\n"
        "except SystemExit as end: print(end.code, 'torch' in sys.modules)\n"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert ran.stdout.strip() == "2 False", ran.stderr
    assert "file not found: m/model.safetensors" in ran.stderr


@pytest.mark.parametrize("name", ["HUGGINGFACE_HUB_TOKEN", "HUGGING_FACE_HUB_TOKEN"])
def test_token_is_read_from_older_variable_names(name):
    environ = {name: "secret"}
    assert find_token(environ) == name
    assert environ["HF_TOKEN"] == "secret"
    environ = {name: "older", "HF_TOKEN": "newer"}
    assert find_token(environ) == "HF_TOKEN"
    assert environ["HF_TOKEN"] == "newer"
    assert find_token({}) == ""


def test_offline_sets_the_libraries_variables():
    environ = {}
    go_offline(environ)
    assert environ == {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1"}


def test_options_come_from_flags_and_yaml(tmp_path):
    (tmp_path / "c.yaml").write_text("length: 64\nlora: 8\nmodel: org/name\n")
    read = read_llm_options(["--config", "c.yaml", "--epochs", "3", "--run-id", "x"], {})
    assert (read.length, read.lora, read.epochs, read.run) == (64, 8, 3, "x")
    assert read.lr == 2e-4  # adapters tolerate a higher rate
    assert options().lr == 2e-5
    assert options(environ={"MLFLOW_TRACKING_URI": "http://x"}).trackers == ("mlflow",)
    with pytest.raises(SpecError, match="no model given"):
        read_llm_options([], {})
    with pytest.raises(SpecError, match="--precision int8"):
        options("--precision", "int8")
    for rank in ("eight", "-1", "none"):
        with pytest.raises(SpecError, match="lora"):
            options("--lora", rank)
    with pytest.raises(SpecError, match="unknown trainer setting 'lenght'"):
        options("--lenght", "3")


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        (("--fp8",), "--precision fp8"),
        (("--loss", "mse"), "the model computes its own"),
        (("--tokens-per-sample", "5"), "--length"),
        (("--flops-per-token", "5"), "it is computed from the model"),
        (("--lora-targets", "q_proj"), "--lora 16"),
        (("--best-metric", "los"), "did you mean loss?"),
    ],
)
def test_flags_without_effect_are_refused(words, hint):
    with pytest.raises(SpecError) as caught:
        options(*words)
    assert hint in caught.value.hint


def test_a_config_that_holds_no_settings_is_named(tmp_path):
    (tmp_path / "config.json").write_text("[]")
    with pytest.raises(SpecError, match=r"config\.json is not a JSON object"):
        read_hf_config(tmp_path)


def test_token_budget_and_micro_batch():
    asked = options("--tokens-per-step", "1048576", "--length", "4096")
    assert asked.samples_per_step == 256
    assert choose_rows(asked, Shape(dp=4)) == 8
    assert choose_rows(asked, Shape(dp=64)) == 4
    assert choose_rows(options("--micro-batch", "3"), Shape()) == 3
