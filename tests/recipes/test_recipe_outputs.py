"""Outputs of the recipes: the claim that guides mount, and URLs."""

from __future__ import annotations

import json

import pytest

from windlass import names
from windlass.errors import SpecError
from windlass.recipes import recipe_flags
from windlass.recipes.llm.llm_options import read_llm_options
from windlass.recipes.train import main as smoke


def test_outputs_claim_is_the_default(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(recipe_flags, "OUT_CLAIM", str(tmp_path / "claim"))
    assert recipe_flags.guess_out({}) == {}
    (tmp_path / "claim").mkdir()
    assert recipe_flags.guess_out({names.OUT: "/job/out"}) == {}
    flags = ["--samples", "64", "--batch", "32", "--epochs", "1"]
    smoke(flags)
    assert f"out={tmp_path}/claim/smoke" in capsys.readouterr().out
    smoke([*flags, "--out", "mine"])
    assert f"out={tmp_path}/mine/smoke" in capsys.readouterr().out


def test_a_folder_that_cannot_be_written_is_named(tmp_path, capsys):
    (tmp_path / "file").touch()
    with pytest.raises(SystemExit) as ended:
        smoke(["--out", f"{tmp_path}/file/out"])
    assert ended.value.code == 2
    assert f"cannot write to {tmp_path}/file/out/smoke" in capsys.readouterr().err


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
def test_unwritable_folder_is_named_before_the_model_is_loaded(tmp_path, capsys):
    pytest.importorskip("transformers")
    from recipes.tiny_llama import write_model

    from windlass.recipes.train_framework import main

    write_model(tmp_path / "m")
    (tmp_path / "t.jsonl").write_text('{"text": "one"}\n')
    with pytest.raises(SystemExit):
        main(["--model", "m", "--train-file", "t.jsonl", "--out", f"{tmp_path}/t.jsonl/out"])
    output = capsys.readouterr()
    assert "t.jsonl/out/run: Not a directory" in output.err
    assert "[MODEL]" not in output.out


def test_run_at_a_url_is_not_copied_to_another():
    words = ["--model", "m", "--out", "s3://bucket/runs", "--sync-to", "s3://other"]
    with pytest.raises(SpecError, match="--out s3://bucket/runs is already a URL"):
        read_llm_options(words, {})


@pytest.mark.long
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
def test_complete_run_is_at_its_url_at_the_end(tmp_path, capsys):
    pytest.importorskip("transformers")
    pytest.importorskip("fsspec")
    from recipes.tiny_llama import write_model

    from windlass.recipes.train_framework import main

    write_model(tmp_path / "m")
    (tmp_path / "t.jsonl").write_text((json.dumps({"text": "one and one is two"}) + "\n") * 8)
    main(
        [
            *("--model-local-dir", "m", "--train-file", "t.jsonl", "--val-file", "t.jsonl"),
            # the loss gets worse
            *("--length", "32", "--batch", "2", "--lr", "1", "--warmup", "0"),
            *("--steps", "3", "--validate-every", "1", "--out", f"file://{tmp_path}/there"),
        ]
    )
    run = tmp_path / "there/run"
    assert (run / "export/final/model.safetensors").is_file()
    assert (run / "export/best/model.safetensors").is_file()
    assert (run / "metrics.jsonl").is_file()
    assert (run / "step-3/manifest.json").is_file()
    assert f"files to file://{tmp_path}/there" in capsys.readouterr().out
    assert not (tmp_path / "file:").exists()
