"""Client of an API server: kubeconfig, authentication, HTTP, watches, port-forward and access checks."""
