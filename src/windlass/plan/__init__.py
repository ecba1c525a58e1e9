"""Planning: pure functions from a JobSpec to a Plan, and from a Plan to each rank's environment."""
