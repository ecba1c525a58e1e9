"""BuiltinTrainer, which runs the recipe for language models: its command, and refused settings."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from recipes.tiny_llama import write_model

from windlass.recipes.llm.llm_options import read_llm_options
from windlass.trainer import (
    BuiltinTrainer,
    DataType,
    HuggingFaceModelInitializer,
    Initializer,
    LoraConfig,
    Loss,
    TorchTuneConfig,
    TrainerClient,
)
from windlass.trainer.options import Name, TrainerCommand, read_sdk_options
from windlass.trainer.sdk_errors import WrongArgument
from windlass.trainer.translate import RECIPE, JobRequest, is_for_tuning, read_trainer

MODEL = Initializer(model=HuggingFaceModelInitializer("hf://org/name", access_token="secret"))


def read(initializer: Any = MODEL, **settings: Any) -> JobRequest:
    trainer = BuiltinTrainer(config=TorchTuneConfig(**settings))
    return read_trainer(trainer, read_sdk_options([Name("tuned")]), initializer)


def read_words(request: JobRequest) -> Any:
    """Return the recipe's settings, parsed from the command as the recipe does."""
    assert isinstance(request.target, tuple)
    assert request.target[: len(RECIPE)] == RECIPE
    return read_llm_options(request.target[len(RECIPE) :], {})


def test_defaults_are_those_of_the_recipe():
    request = read()
    assert read_words(request) == read_llm_options(["--model", "org/name"], {})
    assert request.name == "tuned"
    assert request.settings == {"env": {"HF_TOKEN": "secret"}}


def test_everything_that_is_supported():
    request = read(
        Initializer(dataset="/data/mine.jsonl", model=HuggingFaceModelInitializer("/models/a")),
        dtype=DataType.BF16,
        batch_size=10,
        epochs=2,
        loss=Loss.CEWithChunkedOutputLoss,
        num_nodes=2,
        peft_config=LoraConfig(lora_rank=4, apply_lora_to_mlp=True),
        resources_per_node={"gpu": 4, "memory": "16Gi"},
    )
    options = read_words(request)
    assert (options.model, options.train_file) == ("/models/a", "/data/mine.jsonl")
    assert (options.precision, options.batch, options.epochs) == ("bf16", 10, 2)
    assert (options.lora, options.alpha) == (4, 16)
    assert options.lora_targets == (
        *("q_proj", "v_proj", "o_proj"),
        *("gate_proj", "up_proj", "down_proj"),
    )
    assert request.settings == {"nodes": 2, "gpus": 4, "memory": "16Gi", "env": {}}


@pytest.mark.parametrize(
    ("settings", "shown"),
    [
        ({"peft_config": LoraConfig(quantize_base=True)}, "quantize_base is not supported"),
        ({"peft_config": LoraConfig(use_dora=True)}, "use_dora is not supported"),
        ({"peft_config": LoraConfig(lora_dropout=0.1)}, "lora_dropout is not supported"),
        ({"peft_config": LoraConfig(lora_attn_modules=["x"])}, "lora_attn_modules has no 'x'"),
        ({"peft_config": LoraConfig(lora_attn_modules=[])}, "no layer would get adapters"),
        ({"dataset_preprocess_config": object()}, "dataset_preprocess_config is not supported"),
        ({"initializer": None}, "needs a model"),
        ({"initializer": Initializer(model=object())}, "a object is not supported"),
        (
            {"initializer": Initializer(dataset=object(), model=MODEL.model)},
            "object is not supported",
        ),
    ],
)
def test_unsupported_settings_are_refused_by_name(settings, shown):
    with pytest.raises(WrongArgument, match=shown):
        read(**settings)


def test_a_config_of_another_kind_and_a_command_are_refused():
    with pytest.raises(WrongArgument, match="config must be a TorchTuneConfig, not 3"):
        read_trainer(BuiltinTrainer(config=3), read_sdk_options(None), MODEL)
    command = read_sdk_options([TrainerCommand(["sh"])])
    with pytest.raises(WrongArgument, match="are for a CustomTrainerContainer"):
        read_trainer(BuiltinTrainer(config=TorchTuneConfig()), command, MODEL)


def test_torchtune_runtimes_are_accepted():
    assert is_for_tuning("torchtune-llama3.2-1b")
    assert not is_for_tuning("torch-distributed")
    assert not is_for_tuning(None)


def test_sdk_objects_are_accepted():
    types = pytest.importorskip("kubeflow.trainer.types.types")
    config = types.TorchTuneConfig(
        dtype=types.DataType.FP32, peft_config=types.LoraConfig(lora_rank=2)
    )
    model = types.HuggingFaceModelInitializer(storage_uri="hf://org/name")
    trainer, initializer = types.BuiltinTrainer(config=config), types.Initializer(model=model)
    options = read_words(read_trainer(trainer, read_sdk_options(None), initializer))
    assert (options.model, options.precision, options.lora) == ("org/name", "fp32", 2)


@pytest.mark.long
def test_a_tiny_model_is_trained(tmp_path: Path, monkeypatch) -> None:
    pytest.importorskip("transformers")
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "none"))
    monkeypatch.chdir(tmp_path)
    write_model(tmp_path / "tiny")
    rows = "".join(json.dumps({"text": f"{n} plus 1 is {n + 1}"}) + "\n" for n in range(40))
    (tmp_path / "train.jsonl").write_text(rows)
    client = TrainerClient()
    name = client.train(
        runtime="torchtune-llama3.2-1b",
        initializer=Initializer(
            dataset=str(tmp_path / "train.jsonl"),
            model=HuggingFaceModelInitializer(str(tmp_path / "tiny")),
        ),
        trainer=BuiltinTrainer(config=TorchTuneConfig(epochs=1, batch_size=4)),
    )
    try:
        client.wait_for_job_status(name)
        assert "[DONE] " in "\n".join(client.get_job_logs(name))
    finally:
        client.delete_job(name)
