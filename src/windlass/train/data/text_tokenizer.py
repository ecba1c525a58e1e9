"""Wrapper that gives all tokenizers one interface: Hugging Face's, and any function of a text.

It turns texts into tokens. It also provides the vocabulary's size, the token that ends a document, and a
fingerprint that changes with the tokenizer. For a conversation, `encode_chat` also returns which tokens are
learned: the assistant's turns, up to their end tokens.

If the chat template marks generations itself, its marks are used. Otherwise the conversation is rendered up
to the start and the end of each assistant turn, and the texts are compared. A template that rewrites earlier
turns is refused, because its labels would be guesses. Called by token_cache. This module never imports
transformers.
"""

from __future__ import annotations

import hashlib
import inspect
import json
import re
from collections.abc import Callable, Mapping, Sequence
from types import CodeType, ModuleType
from typing import Any

from windlass.errors import SpecError

_MARKS_GENERATION = re.compile(r"\{%-?\s*generation\b")

Message = Mapping[str, Any]


class TextTokenizer:
    """Tokenizer of any kind: from transformers, from tokenizers, or a function from a text to numbers.

    key: name of the tokenizer in the cache, for one without a fingerprint.
    """

    def __init__(
        self, tokenizer: Any, *, key: str | None = None, vocab_size: int | None = None
    ) -> None:
        self.tokenizer = tokenizer
        self.is_hugging_face = hasattr(tokenizer, "apply_chat_template")
        if not (callable(tokenizer) or hasattr(tokenizer, "encode_batch")):
            raise SpecError(
                f"{type(tokenizer).__name__} is not a tokenizer",
                hint="pass a tokenizer of transformers or tokenizers, or a function from str to list[int]",
            )
        self._key = key
        self._vocab_size = vocab_size

    @property
    def vocab_size(self) -> int | None:
        """Largest token plus one, if known."""
        if self._vocab_size is not None or not self.is_hugging_face:
            return self._vocab_size
        return len(self.tokenizer)

    @property
    def end_token(self) -> int | None:
        """End-of-document token, or None if the tokenizer has none."""
        return getattr(self.tokenizer, "eos_token_id", None)

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        """Return the tokens of each text, with the special tokens that the tokenizer adds itself."""
        if self.is_hugging_face:
            return self.tokenizer(list(texts), verbose=False)["input_ids"]
        if hasattr(self.tokenizer, "encode_batch"):
            return [encoding.ids for encoding in self.tokenizer.encode_batch(list(texts))]
        return [list(self.tokenizer(text)) for text in texts]

    def fingerprint(self) -> str:
        """Return an id that is the same in every process for equal tokenizers, and differs otherwise."""
        about = f"key:{self._key}" if self._key is not None else _describe(self.tokenizer)
        return hashlib.sha256(about.encode()).hexdigest()


def _describe(tokenizer: Any) -> str:
    backend = getattr(tokenizer, "backend_tokenizer", tokenizer)
    if hasattr(backend, "to_str"):  # the tokenizers library serializes the whole tokenizer
        return backend.to_str() + _describe_settings(tokenizer)
    if hasattr(tokenizer, "get_vocab"):
        return json.dumps(tokenizer.get_vocab(), sort_keys=True) + _describe_settings(tokenizer)
    if inspect.isfunction(tokenizer):
        return _describe_function(tokenizer)
    raise _unknown(type(tokenizer).__name__, "it has no content that can be compared")


def _describe_settings(tokenizer: Any) -> str:
    names = ("chat_template", "eos_token_id", "bos_token_id", "add_bos_token", "add_eos_token")
    settings = {name: repr(getattr(tokenizer, name, None)) for name in names}
    return json.dumps([type(tokenizer).__name__, settings], sort_keys=True)


def _describe_function(function: Callable[..., Any]) -> str:
    """Return the code of a function. Raise if its result depends on objects that may change."""
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
        f"cannot determine whether {name} is the tokenizer of cached tokens: {why}",
        hint='pass a name such as tokenizer_key="my-tokenizer-1", and change it when the tokenizer changes',
    )


def encode_chat(
    tokenizer: TextTokenizer, row: Mapping[str, Any], *, where: Callable[[], str]
) -> tuple[list[int], list[int]]:
    """Return the tokens of a row with `messages` (and optional `tools`), and a 1 for each learned one."""
    messages = [_join_parts(message) for message in row["messages"]]
    _check(tokenizer, messages, where)
    from jinja2 import TemplateError  # transformers' chat templates use it

    try:
        return _encode(tokenizer, row, messages, where)
    except TemplateError as error:
        raise SpecError(
            f"{where()}: the chat template rejects these messages: {error}",
            hint="change the row to suit the template, or set tokenizer.chat_template",
        ) from error


def _encode(
    tokenizer: TextTokenizer,
    row: Mapping[str, Any],
    messages: Sequence[Message],
    where: Callable[[], str],
) -> tuple[list[int], list[int]]:
    template = getattr(tokenizer.tokenizer, "chat_template", "")
    options = {"tools": row["tools"]} if row.get("tools") else {}
    if isinstance(template, str) and _MARKS_GENERATION.search(template):
        encoded = tokenizer.tokenizer.apply_chat_template(
            messages, return_dict=True, return_assistant_tokens_mask=True, **options
        )
        return list(encoded["input_ids"]), list(encoded["assistant_masks"])
    text, spans = _find_spans(tokenizer.tokenizer, messages, options, where)
    encoded = tokenizer.tokenizer(
        text, add_special_tokens=False, return_offsets_mapping=True, verbose=False
    )
    learned = [
        int(first < last and any(start <= first < end for start, end in spans))
        for first, last in encoded["offset_mapping"]
    ]
    return list(encoded["input_ids"]), learned


def _find_spans(
    tokenizer: Any, messages: Sequence[Message], options: dict[str, Any], where: Callable[[], str]
) -> tuple[str, list[tuple[int, int]]]:
    """Return the whole text, and the start and end of each assistant turn in it."""

    def render(turns: Sequence[Message], *, asks: bool = False) -> str:
        return tokenizer.apply_chat_template(
            turns, tokenize=False, add_generation_prompt=asks, **options
        )

    text = render(messages)
    spans: list[tuple[int, int]] = []
    for number, message in enumerate(messages):
        if message["role"] != "assistant":
            continue
        before = render(messages[:number], asks=True) if number else ""
        until = render(messages[: number + 1])
        if not (text.startswith(until) and until.startswith(before)):
            raise SpecError(
                f"{where()}: the chat template changes the turn of message {number} when "
                "others follow, so the assistant's words cannot be found in the text",
                hint="use a chat template that marks it with {% generation %} ... {% endgeneration %}, "
                "or train on rows with a single assistant turn at the end",
            )
        spans.append((len(before), len(until)))
    return text, spans


def _join_parts(message: Any) -> Any:
    """Return the message with the parts of its text joined, because few templates support parts."""
    parts = message.get("content") if isinstance(message, Mapping) else None
    if not isinstance(parts, list):
        return message
    texts = [part.get("text") if isinstance(part, Mapping) else None for part in parts]
    known = [text for text in texts if isinstance(text, str)]
    return {**message, "content": "".join(known)} if len(known) == len(parts) else message


def _check(tokenizer: TextTokenizer, messages: Sequence[Any], where: Callable[[], str]) -> None:
    if not tokenizer.is_hugging_face or not getattr(tokenizer.tokenizer, "chat_template", None):
        raise SpecError(
            f"{where()} has messages, but the tokenizer has no chat template",
            hint="use the tokenizer of a chat model, set tokenizer.chat_template, or use rows with `text`",
        )
    for number, message in enumerate(messages):
        if not isinstance(message, Mapping) or not isinstance(message.get("role"), str):
            raise SpecError(
                f"{where()}: message {number} has no role",
                hint='write messages as {"role": "user" or "assistant", "content": "..."}',
            )
        if message.get("content") is None and message.keys() <= {"role", "content"}:
            raise SpecError(  # templates render it as "None", which would be learned
                f"{where()}: message {number} has no content",
                hint='write "content": "..."; null is only for messages with tool_calls or similar',
            )
        if not isinstance(message.get("content"), str | None):  # templates would render its repr
            kind = type(message["content"]).__name__
            raise SpecError(
                f"{where()}: the content of message {number} is a {kind}, not text",
                hint='write "content": "..."; only text is supported',
            )
    if not any(message["role"] == "assistant" for message in messages):
        raise SpecError(
            f"{where()}: no message has the role assistant, so there is nothing to learn",
            hint="remove the row, or write what the assistant should say",
        )
