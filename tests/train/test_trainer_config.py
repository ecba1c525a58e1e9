"""Settings of a trainer from dicts, files and flags. A misspelled setting raises an error that names it."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

import pytest

from windlass.errors import SpecError
from windlass.recipes.llm.llm_options import LlmOptions
from windlass.train.trainer.trainer_options import (
    TrainerOptions,
    describe_flags,
    read_options,
    read_seconds,
)


def read(config=None, **defaults):
    return read_options(TrainerOptions, defaults, config)


def test_config_overrides_keywords():
    options = read({"epochs": 3, "lr": 0.1}, epochs=1, batch=8)
    assert (options.epochs, options.lr, options.batch) == (3, 0.1, 8)


def test_files(tmp_path):
    path = tmp_path / "config.yaml"
    path.write_text(
        "epochs: 3\nlr: 1e-3\nblocks: [Block, Head]\nclip: null\ncheckpoint_every: 30s\n"
    )
    options = read(path)
    assert (options.epochs, options.lr, options.blocks) == (3, 0.001, ("Block", "Head"))
    assert (options.clip, options.checkpoint_every_s) == (None, 30.0)
    (tmp_path / "config.json").write_text('{"steps": 7}')
    assert read(str(tmp_path / "config.json")).steps == 7


@pytest.mark.parametrize("name", ["config.yaml", "config.json"])
def test_a_file_that_cannot_be_parsed_is_named(tmp_path, name):
    (tmp_path / name).write_text("{lr: [\n")
    with pytest.raises(SpecError, match=rf"{name} is not valid (YAML|JSON): (?s:.)*line "):
        read(tmp_path / name)


def test_flags(tmp_path):
    (tmp_path / "config.yaml").write_text("epochs: 3\nbatch: 64\n")
    words = (
        f"--config {tmp_path}/config.yaml --epochs 5 --lr=3e-4 --no-resume --compile --clip none"
    )
    options = read(f"{words} --trackers mlflow,tensorboard --validate-every 20".split())
    assert (options.epochs, options.batch, options.lr) == (5, 64, 3e-4)
    assert (options.resume, options.compile, options.clip) == (False, True, None)
    assert options.trackers == ("mlflow", "tensorboard")
    assert options.validate_every == 20


def test_none_is_read_as_text_for_text_settings():
    assert read(["--strategy", "none"]).strategy == "none"
    assert read({"strategy": "none"}).strategy == "none"
    assert read(["--out", "none"]).out is None


def test_run_name_has_an_alias_that_torchrun_passes_on():
    assert read(["--run-id", "night"]).run == "night"


def test_help_shows_what_the_program_set(capsys):
    with pytest.raises(SystemExit) as ended:
        read(["--batch", "8", "--help"], epochs=3, trackers=("mlflow",))
    assert ended.value.code == 0
    shown = capsys.readouterr().out
    for flag in ("--epochs 3 ", "--trackers mlflow ", "--batch 32 ", "--resume true "):
        assert f"\n  {flag}" in shown
    assert re.search(r"--batch 32 +samples of one optimizer step, over ALL ranks\n", shown)


@pytest.mark.parametrize("options_type", [TrainerOptions, LlmOptions])
def test_help_describes_each_setting(options_type):
    lines = describe_flags(options_type, {}).splitlines()
    assert [line for line in lines if len(line) < 36] == []


@pytest.mark.parametrize(
    ("config", "message", "hint"),
    [
        ({"epoch": 3}, "unknown trainer setting 'epoch'", "did you mean epochs?"),
        (["--learning-rte", "1"], "unknown trainer setting 'learning_rte'", ""),
        ({"batch": 6, "batch_size": 3}, "batch and batch_size are both given", "of one rank"),
        (
            ["--learning-rate", "1"],
            "unknown trainer setting 'learning_rate'",
            "use `lr` instead",
        ),
        ({"optim_lr": 3, "lr": 3}, "optim_lr and lr are the same setting", "pass only one of them"),
        ({"epochs": "three"}, "epochs must be int | None, not 'three'", "change epochs"),
        ({"epochs": 2.5}, "epochs must be int | None, not 2.5", ""),
        ({"compile": 3}, "compile must be bool, not 3", ""),
        ({"epochs": 0}, "epochs must be at least 1, not 0", "larger number"),
        ({"lr": "inf"}, "lr must be a finite number of at least 0, not inf", "a rate such as"),
        (
            {"weight_decay": -1.0},
            "weight_decay must be a finite number of at least 0, not -1",
            "use 0 to disable it",
        ),
        ({"clip": -1.0}, "clip must be at least 0, not -1", "none to disable clipping"),
        ({"run": "../../x"}, "within the output folder, not '../../x'", "a name such as"),
        ({"run": "/tmp/x"}, "within the output folder, not '/tmp/x'", "a name such as"),
        (
            {"run": "./"},
            "run must name a folder within the output folder, not './'",
            "a name such as",
        ),
        (
            {"run": " "},
            "run must name a folder within the output folder, not ' '",
            "a name such as",
        ),
        ({"best": "lowest"}, 'best must be "min" or "max", not \'lowest\'', "best_metric"),
        ({"validate_every": "often"}, "invalid validate_every 'often'", ""),
        ({"checkpoint_every": "soon"}, "invalid duration 'soon'", '"30s"'),
        (
            {"validate_every": 0},
            "validate_every must be at least 1, not 0",
            "or remove the setting",
        ),
        (
            {"checkpoint_every": -3},
            "checkpoint_every must be at least 0, not -3",
            "use 0 to save no checkpoints",
        ),
        ({"tokens_per_sample": -1}, "tokens_per_sample must be at least 1, not -1", ""),
        ({"steps": math.inf}, "steps must be int | None, not inf", ""),
        (["--epochs"], "--epochs requires a value", ""),
        (["epochs"], "unexpected argument 'epochs'", "--key value"),
        ("no-such.yaml", "cannot read the config no-such.yaml", ""),
    ],
)
def test_invalid_settings_are_reported(config, message, hint):
    with pytest.raises(SpecError) as caught:
        read(config)
    assert message in caught.value.message
    assert hint in caught.value.hint


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.yaml", b"lr: [1\n  x", "is not valid YAML"),
        ("a.json", b"{lr", "is not valid JSON"),
        ("a.yaml", b"\xff\xfe", "it is not text"),
    ],
)
def test_a_file_that_cannot_be_read_is_named(tmp_path, name, content, message):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(SpecError, match=message) as caught:
        read(tmp_path / name)
    assert name in caught.value.message


def test_user_settings_are_fields():
    @dataclass(frozen=True, kw_only=True)
    class Mine(TrainerOptions):
        hidden: int = 32

    globals()["Mine"] = Mine
    assert read_options(Mine, {}, ["--hidden", "64"]).hidden == 64
    with pytest.raises(SpecError, match="did you mean hidden"):
        read_options(Mine, {}, ["--hiden", "64"])


def test_a_budget_of_tokens_is_a_number_of_samples():
    assert read(tokens_per_step=1 << 16, tokens_per_sample=2048).samples_per_step == 32
    with pytest.raises(SpecError, match="the number of tokens per sample"):
        _ = read(tokens_per_step=1 << 16).samples_per_step


def test_times():
    assert [read_seconds(text) for text in ("250ms", "30s", "5m", "1.5h")] == [0.25, 30, 300, 5400]
