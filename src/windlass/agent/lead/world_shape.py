"""The shape of a world: all that its ranks were forked with. Worlds of one shape can stand in for each other.

Pure.
"""

from __future__ import annotations

import json

from windlass.wire.message import to_plain
from windlass.wire.messages.calls import CallProfile


def shape_of(asked: CallProfile) -> str:
    """What a call wants of the ranks that run it, as a text to compare."""
    project = asked.project
    place = [project.cwd, project.root, project.paths]
    forked = [asked.preload, asked.store, asked.start, asked.framework, asked.sizes]
    return json.dumps([asked.world, asked.env, forked, place], default=to_plain)
