"""What the data path needs of a tokenizer, over a tokenizer of Hugging Face or any function of a text.

Texts become tokens; whoever asks also learns the vocabulary's size, the token that ends a document, and a
fingerprint that changes when the tokenizer does. transformers itself is never imported. Used by token_cache
and chat_labels.
"""

from __future__ import annotations

import hashlib
import inspect
import json
from collections.abc import Callable, Sequence
from types import CodeType, ModuleType
from typing import Any

from windlass.errors import SpecError


class TextTokenizer:
    """A tokenizer of any kind: of transformers, of tokenizers, or a function from a text to numbers.

    key: names it in the cache, where its own fingerprint cannot be known.
    """

    def __init__(
        self, tokenizer: Any, *, key: str | None = None, vocab_size: int | None = None
    ) -> None:
        self.tokenizer = tokenizer
        self.is_hugging_face = hasattr(tokenizer, "apply_chat_template")
        if not (callable(tokenizer) or hasattr(tokenizer, "encode_batch")):
            raise SpecError(
                f"{type(tokenizer).__name__} is not a tokenizer",
                hint="give a tokenizer of transformers, or a function from a text to a list of numbers",
            )
        self._key = key
        self._vocab_size = vocab_size

    @property
    def vocab_size(self) -> int | None:
        """One more than its largest token, where that is known."""
        if self._vocab_size is not None or not self.is_hugging_face:
            return self._vocab_size
        return len(self.tokenizer)

    @property
    def end_token(self) -> int | None:
        """The token that ends a document, where it has one."""
        return getattr(self.tokenizer, "eos_token_id", None)

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        """Tokens of each text, with the special tokens that the tokenizer adds itself."""
        if self.is_hugging_face:
            return self.tokenizer(list(texts), verbose=False)["input_ids"]
        if hasattr(self.tokenizer, "encode_batch"):
            return [encoding.ids for encoding in self.tokenizer.encode_batch(list(texts))]
        return [list(self.tokenizer(text)) for text in texts]

    def fingerprint(self) -> str:
        """The same in every process for the same tokenizer, another one for another."""
        about = f"key:{self._key}" if self._key is not None else _describe(self.tokenizer)
        return hashlib.sha256(about.encode()).hexdigest()


def _describe(tokenizer: Any) -> str:
    backend = getattr(tokenizer, "backend_tokenizer", tokenizer)
    if hasattr(backend, "to_str"):  # tokenizers' own: all of it, as JSON
        return backend.to_str() + _describe_settings(tokenizer)
    if hasattr(tokenizer, "get_vocab"):
        return json.dumps(tokenizer.get_vocab(), sort_keys=True) + _describe_settings(tokenizer)
    if inspect.isfunction(tokenizer):
        return _describe_function(tokenizer)
    raise _unknown(type(tokenizer).__name__, "nothing of it can be compared")


def _describe_settings(tokenizer: Any) -> str:
    names = ("chat_template", "eos_token_id", "bos_token_id", "add_bos_token", "add_eos_token")
    settings = {name: repr(getattr(tokenizer, name, None)) for name in names}
    return json.dumps([type(tokenizer).__name__, settings], sort_keys=True)


def _describe_function(function: Callable[..., Any]) -> str:
    """Its code; only where nothing else, which may change, takes part in its result."""
    closure = inspect.getclosurevars(function)
    others = [
        name
        for name, value in {**closure.nonlocals, **closure.globals}.items()
        if not isinstance(value, (ModuleType, int, str, float, bytes))
    ]
    if others:
        raise _unknown(f"the function {function.__qualname__}", f"it uses {', '.join(others)}")
    values = sorted(
        (name, repr(value))
        for name, value in {**closure.nonlocals, **closure.globals}.items()
        if not isinstance(value, ModuleType)
    )
    defaults = repr((function.__defaults__, function.__kwdefaults__))
    return f"{_describe_code(function.__code__)} {defaults} {values}"


def _describe_code(code: CodeType) -> str:
    constants = [
        _describe_code(constant) if isinstance(constant, CodeType) else repr(constant)
        for constant in code.co_consts
    ]
    return f"{code.co_code.hex()} {code.co_names} {constants}"


def _unknown(name: str, why: str) -> SpecError:
    return SpecError(
        f"it cannot be told whether {name} is the tokenizer of earlier tokens: {why}",
        hint='name it, and change the name when it changes: tokenizer_key="my-tokenizer-1"',
    )
