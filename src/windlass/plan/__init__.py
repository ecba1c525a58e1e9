"""Planning: pure functions that turn a JobSpec into a Plan, and a Plan into each rank's environment."""
