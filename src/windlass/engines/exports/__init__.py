"""Documents that need no Windlass in the cluster."""
