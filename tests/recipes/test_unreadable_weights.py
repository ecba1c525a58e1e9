"""Unreadable weights. The error is one sentence with a hint, not a traceback of a library."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from windlass.errors import SpecError
from windlass.recipes.llm.model_build import load_weights


@pytest.mark.parametrize("how", ["cut off", "a folder", "missing"])
def test_unreadable_weights_are_named(tmp_path, how):
    pytest.importorskip("safetensors")
    path = tmp_path / "model.safetensors"
    if how == "cut off":
        path.write_bytes(b"\x40")
    elif how == "a folder":
        path.mkdir()
    with pytest.raises(SpecError) as caught:
        load_weights(nn.Linear(2, 2, device=torch.device("meta")), tmp_path)
    assert f"cannot read the weights in {path}: " in caught.value.message
    assert f"ls -l {path}" in caught.value.hint
