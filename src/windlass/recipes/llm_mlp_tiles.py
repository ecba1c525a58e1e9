"""Which sizes the kernel of `llm_adapted_mlp` takes: it has whole tiles only.

Pure, without torch, since how many tokens are taken at once is decided by it as well (`llm_room`).
"""

from __future__ import annotations

MOST_RANK = 32  # of adapters
STEP, BLOCK = 16, 64  # tokens and columns of a tile
# rows of matrices are multiples of it: the compiler may lay out longer ones with gaps otherwise
_MULTIPLE = 64
_MOST_TOKENS, _FEWEST_TOKENS = (
    1024,
    256,
)  # of a part: fewer make many parts, each with sums of its own


def can_tile(num_tokens: int, *, hidden_size: int, mlp_size: int) -> bool:
    """Whether tokens of an MLP of these sizes are whole tiles, in parts that are not too many."""
    is_even = hidden_size % _MULTIPLE == 0 and mlp_size % BLOCK == 0
    return is_even and choose_part(num_tokens) > 0


def choose_part(num_tokens: int) -> int:
    """Tokens that are added up in one go, all parts alike; 0 where no such part is large enough."""
    if num_tokens <= _MOST_TOKENS:
        return 0 if num_tokens % STEP else num_tokens
    for size in range(_MOST_TOKENS, _FEWEST_TOKENS - 1, -STEP):
        if num_tokens % size == 0:
            return size
    return 0
