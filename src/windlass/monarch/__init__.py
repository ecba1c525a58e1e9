"""For code that runs on Monarch: `windlass.monarch.host_mesh()`. Importing it imports nothing of Monarch's.

Inside a rank only the agent's archive may be there, which has this file: the rest is loaded when it is used.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

__all__ = ["host_mesh"]


def host_mesh(*, mesh_name: str = "", selector: str = "", namespace: str = "") -> Any:
    """The Monarch HostMesh of this job's nodes, or of a mesh that others made: one host per node, in order.

    The same one each time it is asked for.

    mesh_name: a mesh in a cluster, by its name; empty: this job's own.
    selector: labels of its pods instead of its name.
    namespace: where it is; empty: the context's own.
    """
    from windlass.frameworks import monarch_client

    if not (mesh_name or selector):
        return monarch_client.attach_own()
    from windlass.monarch.pod_mesh import find_hosts

    return monarch_client.attach_to(find_hosts(mesh_name, selector, namespace))
