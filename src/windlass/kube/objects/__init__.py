"""Documents for a job's objects, and readers for the fields of API server objects. No I/O."""
