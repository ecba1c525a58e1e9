"""Code shared by all Kubernetes engines: submit, watch, resize and end a job."""
