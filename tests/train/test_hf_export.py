"""Models as Hugging Face folders, which transformers loads with equal results."""

from __future__ import annotations

import json

import pytest
import torch
from torch import nn

from windlass.errors import EngineError
from windlass.train.checkpoint.hf_export import export_hf

safetensors = pytest.importorskip("safetensors.torch")


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(20, 8)
        self.head = nn.Linear(8, 20, bias=False)
        self.head.weight = self.embed.weight


def test_tied_weights_are_exported_once_with_the_given_config(tmp_path, alone):
    model = Tied()
    export_hf(model, tmp_path, config={"model_type": "toy"}, context=alone, dtype=torch.bfloat16)
    weights = safetensors.load_file(tmp_path / "model.safetensors")
    assert list(weights) == ["embed.weight"]
    assert torch.equal(weights["embed.weight"], model.embed.weight.bfloat16())
    assert json.loads((tmp_path / "config.json").read_text()) == {"model_type": "toy"}


def test_split_export_has_an_index_and_replaces_an_earlier_export(tmp_path, alone):
    model = nn.Sequential(*(nn.Linear(16, 16, bias=False) for _ in range(3)))
    export_hf(model, tmp_path, config={}, context=alone)
    export_hf(model, tmp_path, config={}, context=alone, file_bytes=16 * 16 * 4)
    index = json.loads((tmp_path / "model.safetensors.index.json").read_text())
    assert index["weight_map"]["1.weight"] == "model-00002-of-00003.safetensors"
    assert index["metadata"]["total_size"] == 3 * 16 * 16 * 4
    assert sorted(path.name for path in tmp_path.glob("*.safetensors")) == sorted(
        index["weight_map"].values()
    )
    export_hf(model, tmp_path, config={}, context=alone)
    assert [path.name for path in tmp_path.glob("model*")] == ["model.safetensors"]


def test_model_without_a_config_is_reported(tmp_path, alone):
    with pytest.raises(EngineError, match="needs a config"):
        export_hf(nn.Linear(2, 2), tmp_path, context=alone)


@pytest.mark.long
def test_transformers_loads_it(tmp_path, alone):
    transformers = pytest.importorskip("transformers")
    config = transformers.LlamaConfig(
        vocab_size=64,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        tie_word_embeddings=True,
    )
    model = transformers.LlamaForCausalLM(config).eval()
    export_hf(model, tmp_path, context=alone, file_bytes=8000)
    loaded = transformers.AutoModelForCausalLM.from_pretrained(tmp_path).eval()
    tokens = torch.arange(10)[None]
    with torch.no_grad():
        assert torch.equal(loaded(tokens).logits, model(tokens).logits)
