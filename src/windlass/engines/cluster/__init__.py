"""What all engines on Kubernetes share: submitting, following, resizing and ending a job."""
