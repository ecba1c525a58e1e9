"""Lead of a job: starts, ends and restarts attempts, and collects their results."""
