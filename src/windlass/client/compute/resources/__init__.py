"""Resources of nodes: images, secrets and volumes."""
