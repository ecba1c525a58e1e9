"""Access to Monarch host meshes: `windlass.monarch.host_mesh()`.

Importing this module does not import Monarch. The agent's archive contains this file, and inside a rank
nothing else may be installed. Everything else is therefore loaded on first use.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

__all__ = ["host_mesh"]


def host_mesh(*, mesh_name: str = "", selector: str = "", namespace: str = "") -> Any:
    """Return the Monarch HostMesh of this job's nodes, or of another mesh in a cluster.

    The mesh has one host per node, in node order. Calls for the same mesh return the same HostMesh.

    mesh_name: the name of a mesh in a cluster (default: this job's own mesh).
    selector: labels of the mesh's pods, instead of its name.
    namespace: the namespace of the mesh (default: that of the kubeconfig context).
    """
    from windlass.frameworks import monarch_client

    if not (mesh_name or selector):
        return monarch_client.attach_own()
    from windlass.monarch.pod_mesh import find_hosts

    return monarch_client.attach_to(find_hosts(mesh_name, selector, namespace))
