"""A conversation as tokens, and which of them are learned: what the assistant says, to the end of its turn.

A chat template that marks generations itself is asked; otherwise the text is rendered up to each turn of the
assistant and compared, and a template that rewrites earlier turns is refused, since its labels would be
guesses. Called by token_cache; transformers is never imported.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from windlass.errors import SpecError
from windlass.train.text_tokenizer import TextTokenizer

_MARKS_GENERATION = re.compile(r"\{%-?\s*generation\b")

Message = Mapping[str, Any]


def encode_chat(
    tokenizer: TextTokenizer, row: Mapping[str, Any], *, where: Callable[[], str]
) -> tuple[list[int], list[int]]:
    """Tokens of a row with `messages` (and perhaps `tools`), and a 1 for each that is learned."""
    messages = [_join_parts(message) for message in row["messages"]]
    _check(tokenizer, messages, where)
    from jinja2 import TemplateError  # of which transformers makes its chat templates

    try:
        return _encode(tokenizer, row, messages, where)
    except TemplateError as error:
        raise SpecError(
            f"{where()}: the chat template refuses these messages: {error}",
            hint="change the row to what the template takes, or set tokenizer.chat_template",
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
    """The whole text, and from where to where in it the assistant speaks."""

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
                f"{where()}: the chat template writes the turn of message {number} in another way once "
                "others follow, so what the assistant said cannot be found in the text",
                hint="use a chat template that marks it with {% generation %} ... {% endgeneration %}, "
                "or train on rows with one turn of the assistant, the last",
            )
        spans.append((len(before), len(until)))
    return text, spans


def _join_parts(message: Any) -> Any:
    """The message with its text as one, where it is in parts: few templates know those."""
    parts = message.get("content") if isinstance(message, Mapping) else None
    if not isinstance(parts, list):
        return message
    texts = [part.get("text") if isinstance(part, Mapping) else None for part in parts]
    known = [text for text in texts if isinstance(text, str)]
    return {**message, "content": "".join(known)} if len(known) == len(parts) else message


def _check(tokenizer: TextTokenizer, messages: Sequence[Any], where: Callable[[], str]) -> None:
    if not tokenizer.is_hugging_face or not getattr(tokenizer.tokenizer, "chat_template", None):
        raise SpecError(
            f"{where()} has messages, and the tokenizer has no chat template",
            hint="use the tokenizer of a chat model, set tokenizer.chat_template, or give rows with `text`",
        )
    for number, message in enumerate(messages):
        if not isinstance(message, Mapping) or not isinstance(message.get("role"), str):
            raise SpecError(
                f"{where()}: message {number} has no role",
                hint='a message is {"role": "user" or "assistant", "content": "..."}',
            )
        if message.get("content") is None and message.keys() <= {"role", "content"}:
            raise SpecError(  # templates write it as "None", which would be learned
                f"{where()}: message {number} has no content",
                hint='write "content": "..."; null is for messages that have tool_calls or the like',
            )
        if not isinstance(message.get("content"), str | None):  # they would write it as Python does
            kind = type(message["content"]).__name__
            raise SpecError(
                f"{where()}: the content of message {number} is no text, but a {kind}",
                hint='write "content": "..."; only text is learned here',
            )
    if not any(message["role"] == "assistant" for message in messages):
        raise SpecError(
            f"{where()}: no message is the assistant's, so there is nothing to learn",
            hint="remove the row, or write what the assistant should say",
        )
