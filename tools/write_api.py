"""Writer of src/windlass/client/keyword_types.py from the tables of keywords. Run it with `make api`.

Editors and type checkers read the keywords from that file, because they cannot run the code of the tables.
"""

from __future__ import annotations

import textwrap
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
_COMPUTE = (*COMPUTE, *COMPUTE_MORE)
_APP = tuple(one for one in APP if one.name not in ("name", "gpus"))
_NODE = tuple(one for one in JOB if one in _COMPUTE and one in _APP)
_JOB_OR_APP = tuple(one for one in JOB if one in _APP and one not in _NODE)
_COMPUTE_OR_APP = tuple(one for one in _COMPUTE if one in _APP and one not in _NODE)
# Each class with its docstring, its keywords, and the classes from which it inherits some of them.
_CLASSES = {
    "NodeKeywords": ("Settings of the nodes of jobs, computes and apps.", _NODE, ()),
    "JobOrAppKeywords": ("Settings of jobs and apps.", _JOB_OR_APP, ()),
    "ComputeOrAppKeywords": ("Keywords of computes and apps.", _COMPUTE_OR_APP, ()),
    "JobKeywords": (
        "Keywords of `run` and `submit`.",
        JOB,
        ("NodeKeywords", "JobOrAppKeywords"),
    ),
    "ComputeKeywords": (
        "Keywords of `Compute` and `@compute`.",
        _COMPUTE,
        ("NodeKeywords", "ComputeOrAppKeywords"),
    ),
    "AppKeywords": (
        "Keywords of `app` beside its own parameters.",
        _APP,
        ("NodeKeywords", "JobOrAppKeywords", "ComputeOrAppKeywords"),
    ),
    "CallKeywords": ("Keywords of `fn`, `cls` and `.options`.", CALL, ()),
    "OtherDistributeKeywords": (
        "Keywords of `.distribute` beside its own parameters.",
        DISTRIBUTE_MORE,
        (),
    ),
    "DistributeKeywords": ("Keywords of `@distribute`.", DISTRIBUTE, ("OtherDistributeKeywords",)),
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
    """Return the content of the file."""
    classes = [_render_class(name, *about) for name, about in _CLASSES.items()]
    return "\n\n".join([_HEAD, *classes])


def _render_class(
    name: str, about: str, keywords: Iterable[Keyword], parents: tuple[str, ...]
) -> str:
    inherited = [one for parent in parents for one in _CLASSES[parent][1]]
    bases = ", ".join(parents) or "TypedDict"
    lines = [f"class {name}({bases}, total=False):", f'    """{about}"""', ""]
    for keyword in keywords:
        if keyword not in inherited:
            text = textwrap.fill(_quote(keyword.help), 100, subsequent_indent=" " * 4)
            lines += [f"    {keyword.name}: {keyword.type}", f'    """{text}"""']
    return "\n".join(lines).rstrip() + "\n"


def _quote(text: str) -> str:
    return text.replace("\\", "\\\\").removesuffix('"') + ('\\"' if text.endswith('"') else "")


if __name__ == "__main__":
    PATH.write_text(render())
