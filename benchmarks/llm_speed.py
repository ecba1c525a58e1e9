"""Speed ratios of `llm.py`: each case against its peers of the same run."""

from __future__ import annotations

from typing import Any, NamedTuple


class Pair(NamedTuple):
    """A case, its peer, and the target ratio if it has one."""

    case: str
    peer: str
    at_least: float | None = None


LEAST_ROWS_USED = 0.98  # target of packing


def make_pairs(precisions: tuple[str, ...]) -> list[Pair]:
    """Return the compared pairs: Hugging Face's cases, Windlass's precisions, packed and padded rows."""
    plain, *others = precisions
    pairs = [Pair(case, peer) for case in precisions for peer in ("hf-trainer", "hf-loop")]
    pairs += [Pair(case, plain) for case in others]
    pairs.append(Pair("lora", plain, 1.3))
    pairs += [Pair(f"lora-{case}", case) for case in others]
    pairs.append(Pair(f"{plain}-mixed", "padded"))
    return pairs


def describe_speed(seen: dict[str, Any], *, precisions: tuple[str, ...]) -> list[str]:
    """Return lines with the ratio of each pair that ran, and the share of rows that packing uses."""
    lines = []
    for case, peer, at_least in make_pairs(precisions):
        if case in seen and peer in seen:
            ratio = seen[case]["tokens_per_s"] / seen[peer]["tokens_per_s"]
            lines.append(f"{case} is {ratio:.2f}x of {peer}{_judge(ratio, at_least, '{}x')}")
    packed = seen.get(f"{precisions[0]}-mixed")
    if packed is not None:
        used = packed["rows_used"]
        line = f"packed rows are {used:.1%} tokens{_judge(used, LEAST_ROWS_USED, '{:.0%}')}"
        if "padded" in seen:
            line += f", padded ones {seen['padded']['rows_used']:.1%}"
        lines.append(line)
    return lines


def _judge(value: float, at_least: float | None, form: str) -> str:
    if at_least is None:
        return ""
    return f" (>= {form.format(at_least)}: {'met' if value >= at_least else 'MISSED'})"
