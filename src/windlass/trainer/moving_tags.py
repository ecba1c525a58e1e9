"""Images under a tag that moves, such as latest: taken as the nodes have them, and that is said.

Guides name such images, and a registry that cannot be reached must not keep their jobs from starting. All
other jobs look such a tag up each time, as Kubernetes does. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from windlass import names
from windlass.kube.objects.pod_template import pull_policy

_IF_MISSING = "IfNotPresent"


def keep_present(image: str) -> tuple[Mapping[str, Any], str]:
    """A patch of the pods' template and what to say of it; both empty where the tag does not move."""
    if not image or pull_policy(image) == _IF_MISSING:
        return {}, ""
    # by our own name for it: whatever a kind calls it, patches are made before
    ours = {"name": names.CONTAINER, "imagePullPolicy": _IF_MISSING}
    note = f"{image} is pulled where it is missing only; a tag of its own says which one it is"
    return {"spec": {"containers": [ours]}}, note
