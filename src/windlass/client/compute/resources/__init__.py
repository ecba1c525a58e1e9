"""What nodes are made of: images, secrets and volumes."""
