"""Lookup of a model's files before heavy imports, with errors that name the missing file. Imports no torch.

`train_framework` calls this first, so that a wrong path fails in a fraction of a second and uses no GPU. It
also sets environment variables that Hugging Face's libraries read: the token, and offline mode.
"""

from __future__ import annotations

import hashlib
import json
import os
import struct
from collections.abc import Callable, MutableMapping
from pathlib import Path
from typing import Any

from windlass.errors import SpecError
from windlass.near_names import did_you_mean
from windlass.recipes.llm.llm_options import LlmOptions

TOKEN = "HF_TOKEN"  # noqa: S105
OTHER_TOKENS = (  # names in common use, of which huggingface_hub itself reads only the first
    *("HUGGING_FACE_HUB_TOKEN", "HUGGINGFACE_HUB_TOKEN", "HUGGINGFACE_TOKEN", "HUGGING_FACE_TOKEN"),
    *("HUGGINGFACEHUB_API_TOKEN", "HF_API_TOKEN"),
)
_PIECE_BYTES = 1 << 20
_OFFLINE = ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE")
_WEIGHTS, _INDEX = "model.safetensors", "model.safetensors.index.json"
_OTHER_WEIGHTS = (
    "pytorch_model.bin",
    "pytorch_model.bin.index.json",
)  # files that Hugging Face's own models need
_TOKENIZERS = ("tokenizer.json", "tokenizer.model", "vocab.json", "vocab.txt", "spiece.model")


def find_model_folder(options: LlmOptions) -> Path | None:
    """Return the model's folder if the options name one, or None if the model has to be downloaded."""
    named = options.model_local_dir or options.model or ""
    if options.model_local_dir or options.local_files_only or Path(named).is_dir():
        return Path(named)
    return None


def check_files(options: LlmOptions) -> None:
    """Raise SpecError if a required file is missing or truncated."""
    folder = find_model_folder(options)
    if folder is not None and not (options.local_files_only and _is_cached(folder)):
        if options.model_local_dir is None and not folder.exists():
            raise SpecError(
                f"--model {folder} is not a folder and is not in the hub's cache",
                hint=f"with network access, run `hf download {folder}`, or pass --model-local-dir FOLDER",
            )
        check_model(folder)
    tokenizer = options.tokenizer_local_dir or folder
    if tokenizer is not None and not (options.local_files_only and _is_cached(Path(tokenizer))):
        _check_tokenizer(Path(tokenizer))
    for path in (options.train_file, options.val_file):
        if path is not None and not Path(path).exists():
            raise SpecError(f"file not found: {path}", hint=_explain(Path(path)))


def check_model(folder: Path) -> None:
    """Raise SpecError if a folder lacks its config or weights, or if its weights are truncated."""
    _check_folder(folder, "--model-local-dir")
    config = folder / "config.json"
    if not config.is_file():
        raise SpecError(f"file not found: {config}", hint=_explain(config))
    read_hf_config(folder)
    if (folder / _INDEX).is_file():
        shards = sorted(set(_read_json(folder / _INDEX).get("weight_map", {}).values()))
    elif any((folder / name).is_file() for name in _OTHER_WEIGHTS):
        return
    else:
        shards = [_WEIGHTS]
    for name in shards:
        _check_weights(folder / name)


def has_safetensors(folder: Path) -> bool:
    return (folder / _INDEX).is_file() or (folder / _WEIGHTS).is_file()


def fingerprint_weights(folder: Path) -> str:
    """Return a fingerprint of a model's weights, from the size and one piece of each file."""
    digest = hashlib.sha256()
    for path in sorted(folder.glob("*")):
        if path.suffix == ".safetensors" or path.match("pytorch_model*.bin"):
            size = path.stat().st_size
            with path.open("rb") as file:
                file.seek(max(0, size // 2 - _PIECE_BYTES // 2))
                digest.update(b"%d:" % size + file.read(_PIECE_BYTES))
    return digest.hexdigest()[:12]


def summarize_error(error: Exception) -> str:
    """Return the type of an error and the first line of its message."""
    return f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"


def read_hf_config(folder: Path) -> dict[str, Any]:
    """Return the `config.json` of a folder."""
    return _read_json(folder / "config.json")


def find_token(environ: MutableMapping[str, str]) -> str:
    """Copy the hub token to HF_TOKEN. Return the variable it came from, or an empty string."""
    if environ.get(TOKEN):
        return TOKEN
    for name in OTHER_TOKENS:
        if environ.get(name):
            environ[TOKEN] = environ[name]
            return name
    return ""


def go_offline(environ: MutableMapping[str, str]) -> None:
    """Switch Hugging Face's libraries to offline mode. Call this before importing them."""
    for name in _OFFLINE:
        environ[name] = "1"


def download(options: LlmOptions, say: Callable[[str], None]) -> tuple[Path, Path]:
    """Return the folders of model and tokenizer. Downloads the model unless the options name a folder."""
    folder = find_model_folder(options)
    if folder is None or not folder.is_dir():
        say(f"{options.model} from {'the cache' if options.local_files_only else 'the hub'}")
        folder = _download_model(str(options.model), is_offline=options.local_files_only)
        check_model(folder)
    return folder, Path(options.tokenizer_local_dir or folder)


def _download_model(model: str, *, is_offline: bool) -> Path:
    from huggingface_hub import snapshot_download

    wanted = ["*.json", "*.safetensors", "*.model", "*.txt", "*.jinja"]
    try:
        return Path(snapshot_download(model, local_files_only=is_offline, allow_patterns=wanted))
    except (OSError, ValueError) as error:  # the base classes of the hub's errors
        cause = str(error).strip().partition("\n")[0]
        raise SpecError(
            f"cannot download the model {model}: {cause or type(error).__name__}",
            hint=f"for a gated model, set {TOKEN} and accept its license on the hub; "
            "without network access, pass --model-local-dir FOLDER --local-files-only",
        ) from error


def _is_cached(folder: Path) -> bool:
    """Return whether `folder` is not a local path but the ID of a model in the Hugging Face cache."""
    if folder.exists() or folder.is_absolute() or len(folder.parts) != 2:
        return False
    home = Path(os.environ.get("HF_HOME", "~/.cache/huggingface")).expanduser()
    cache = Path(os.environ.get("HF_HUB_CACHE", home / "hub"))
    return (cache / f"models--{'--'.join(folder.parts)}").is_dir()


def _check_folder(folder: Path, flag: str) -> None:
    if not folder.is_dir():
        raise SpecError(f"folder not found: {folder} ({flag})", hint=_explain(folder))


def _check_tokenizer(folder: Path) -> None:
    _check_folder(folder, "--tokenizer-local-dir")
    if not any((folder / name).is_file() for name in _TOKENIZERS):
        raise SpecError(
            f"no tokenizer found in {folder}",
            hint="copy the tokenizer files there, or pass their folder with --tokenizer-local-dir",
        )


def _check_weights(path: Path) -> None:
    """Compare a safetensors file's size with the one in its header, and raise SpecError if they differ."""
    try:
        with path.open("rb") as file:
            (size,) = struct.unpack("<Q", file.read(8))
            header = json.loads(file.read(size))
        ends = [
            about["data_offsets"][1] for name, about in header.items() if name != "__metadata__"
        ]
        is_whole = path.stat().st_size == 8 + size + max(ends, default=0)
    except FileNotFoundError:
        raise SpecError(f"file not found: {path}", hint=_explain(path)) from None
    except OSError as error:
        raise SpecError(
            f"cannot read the weights in {path}: {error.strerror or error}",
            hint=f"run `ls -l {path}` for its owner and permissions (this is user {os.getuid()})",
        ) from error
    except (struct.error, ValueError, KeyError, MemoryError, OverflowError):
        is_whole = False
    if not is_whole:
        raise SpecError(
            f"{path} is truncated or not a safetensors file",
            hint="copy or download it again; run `git lfs pull` if it is a pointer",
        )


def _read_json(path: Path) -> dict[str, Any]:
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise SpecError(f"cannot read {path}: {error}", hint="copy or download it again") from error
    if not isinstance(values, dict):
        raise SpecError(f"{path} is not a JSON object", hint="copy or download it again")
    return values


def _explain(path: Path) -> str:
    if not path.parent.is_dir():
        return (
            f"the folder {path.parent} does not exist either; check whether the volume is mounted"
        )
    others = sorted(entry.name for entry in path.parent.iterdir())[:50]
    return did_you_mean(
        path.name, others, f"{path.parent} contains {', '.join(others[:5]) or 'nothing'}"
    )
