from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from windlass.errors import SpecError
from windlass.train.data.text_tokenizer import TextTokenizer, encode_chat
from windlass.train.data.token_cache import cache_tokens

transformers = pytest.importorskip("transformers")

PLAIN = (
    "{% for m in messages %}<{{ m.role }}>{{ m.content }}<end>{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)
MARKED = (
    "{% for m in messages %}<{{ m.role }}>"
    "{% if m.role == 'assistant' %}{% generation %}{{ m.content }}<end>{% endgeneration %}"
    "{% else %}{{ m.content }}<end>{% endif %}{% endfor %}"
)
REWRITES = (  # the template omits the thoughts of all turns but the last
    "{% for m in messages %}<{{ m.role }}>"
    "{% if m.role == 'assistant' and loop.last %}{{ m.thought }} {% endif %}{{ m.content }}<end>{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)
MESSAGES = [
    {"role": "user", "content": "hi you"},
    {"role": "assistant", "content": "hello hi"},
    {"role": "user", "content": "you"},
    {"role": "assistant", "content": "bye", "thought": ""},
]


def make_tokenizer(template: str | None) -> Any:
    from tokenizers import Tokenizer, models, pre_tokenizers

    special = ["<unk>", "<user>", "<assistant>", "<end>"]
    words = {word: i for i, word in enumerate([*special, "hi", "you", "hello", "bye"])}
    backend = Tokenizer(models.WordLevel(words, unk_token="<unk>"))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    backend.add_special_tokens(special)
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_object=backend, unk_token="<unk>", eos_token="<end>"
    )
    tokenizer.chat_template = template
    return tokenizer


def encode(template: str | None, messages: list[dict[str, str]]) -> tuple[list[str], list[int]]:
    tokenizer = make_tokenizer(template)
    tokens, learned = encode_chat(
        TextTokenizer(tokenizer), {"messages": messages}, where=lambda: "train.jsonl:1"
    )
    return tokenizer.convert_ids_to_tokens(tokens), learned


@pytest.mark.parametrize("template", [PLAIN, MARKED], ids=["plain", "marked"])
def test_only_assistant_turns_are_learned(template: str) -> None:
    words, learned = encode(template, MESSAGES)
    assert " ".join(words) == (
        "<user> hi you <end> <assistant> hello hi <end> <user> you <end> <assistant> bye <end>"
    )
    assert learned == [0, 0, 0, 0, 0, 1, 1, 1, 0, 0, 0, 0, 1, 1]


def test_a_template_that_rewrites_turns_is_refused() -> None:
    messages = [dict(m, thought="hi") for m in MESSAGES]
    with pytest.raises(
        SpecError, match=r"train\.jsonl:1: the chat template .* message 1 .*\n.*gener"
    ):
        encode(REWRITES, messages)
    assert encode(REWRITES, messages[:2])[1] == [0, 0, 0, 0, 0, 1, 1, 1, 1]


def test_conversations_without_learnable_tokens_are_named() -> None:
    with pytest.raises(SpecError, match="the tokenizer has no chat template"):
        encode(None, MESSAGES)
    with pytest.raises(SpecError, match="message 0 has no role"):
        encode(PLAIN, [{"content": "hi"}])
    with pytest.raises(SpecError, match="no message has the role assistant"):
        encode(PLAIN, MESSAGES[:1])
    for empty in ({"role": "assistant"}, {"role": "assistant", "content": None}):
        with pytest.raises(SpecError, match=r"train\.jsonl:1: message 1 has no content"):
            encode(PLAIN, [MESSAGES[0], empty])


def test_content_parts_are_joined_and_other_content_is_named() -> None:
    parts: list[Any] = [{"type": "text", "text": "hel"}, {"type": "text", "text": "lo hi"}]
    other: list[Any] = [*MESSAGES]
    other[1] = {"role": "assistant", "content": parts}
    assert encode(PLAIN, other) == encode(PLAIN, MESSAGES)
    for content in (3, {"a": 1}, [{"type": "image", "url": "x"}], ["hello"]):
        other[1] = {"role": "assistant", "content": content}
        with pytest.raises(SpecError, match=r"train\.jsonl:1: the content of message 1 is a "):
            encode(PLAIN, other)


@pytest.mark.parametrize(
    "template", ["{{ raise_exception('roles must alternate') }}", "{{ roles must alternate"]
)
def test_messages_refused_by_the_template_are_named(template: str) -> None:
    refused = r"train\.jsonl:1: the chat template rejects these messages: "
    with pytest.raises(SpecError, match=refused):
        encode(template, MESSAGES)


def test_texts_and_messages_in_one_file(tmp_path: Path) -> None:
    data = tmp_path / "train.jsonl"
    rows = [{"text": "hi you"}, {"messages": MESSAGES[:2]}, {"text": "bye <end>"}]
    data.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    tokenizer = make_tokenizer(PLAIN)
    shards = cache_tokens(data, tokenizer, cache=tmp_path / "cache")
    assert [shards.read(i)[0].tolist() for i in range(3)] == [
        [4, 5, 3],  # ended
        [1, 4, 5, 3, 2, 6, 4, 3],
        [7, 3],  # was ended
    ]
    assert [shards.read(i)[1].tolist() for i in (0, 1)] == [
        [True] * 3,
        [False] * 5 + [True] * 3,
    ]
    assert (shards.shards[0].folder / "tokens.bin").stat().st_size == 2 * 13
    same = TextTokenizer(make_tokenizer(PLAIN)).fingerprint()
    assert TextTokenizer(tokenizer).fingerprint() == same
    assert TextTokenizer(make_tokenizer(MARKED)).fingerprint() != same
    assert len(TextTokenizer(tokenizer.backend_tokenizer).encode(["hi", "you hi"])[1]) == 2
