"""Writes src/windlass/client/keyword_types.py from the tables of keywords: `make api`.

Editors and type checkers read keywords from that file, since they cannot run the code that makes the tables.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from windlass.client.keywords import (
    APP,
    CALL,
    COMPUTE,
    COMPUTE_MORE,
    DISTRIBUTE,
    DISTRIBUTE_MORE,
    JOB,
    Keyword,
)

PATH = Path(__file__).parents[1] / "src/windlass/client/keyword_types.py"
_CLASSES = {
    "JobKeywords": ("What `run` and `submit` take.", JOB),
    "ComputeKeywords": ("What `Compute` and `@compute` take.", (*COMPUTE, *COMPUTE_MORE)),
    "AppKeywords": (
        "What `app` takes beside its own parameters.",
        [one for one in APP if one.name not in ("name", "gpus")],
    ),
    "CallKeywords": ("What `fn`, `cls` and `.options` take.", CALL),
    "DistributeKeywords": ("What `@distribute` takes.", DISTRIBUTE),
    "OtherDistributeKeywords": (
        "What `.distribute` takes beside its own parameters.",
        DISTRIBUTE_MORE,
    ),
}
_HEAD = '''"""The keywords of the public functions, for editors and type checkers only.

Written by `make api` from client/keywords.py and settings/table.py: change those instead.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from os import PathLike
from typing import Any, Literal, TypedDict

from windlass.client.compute.resources.image import Image
from windlass.client.compute.resources.secret import Secret
from windlass.client.compute.resources.volume import Volume
from windlass.settings.table import NodeRange
'''


def render() -> str:
    """The whole file."""
    classes = [_render_class(name, *about) for name, about in _CLASSES.items()]
    return "\n\n".join([_HEAD, *classes])


def _render_class(name: str, about: str, keywords: Iterable[Keyword]) -> str:
    lines = [f"class {name}(TypedDict, total=False):", f'    """{about}"""', ""]
    for keyword in keywords:
        lines += [f"    {keyword.name}: {keyword.type}", f'    """{_quote(keyword.help)}"""']
    return "\n".join(lines) + "\n"


def _quote(text: str) -> str:
    return text.replace("\\", "\\\\").removesuffix('"') + ('\\"' if text.endswith('"') else "")


if __name__ == "__main__":
    PATH.write_text(render())
