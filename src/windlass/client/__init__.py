"""What users call: jobs, computes, and what both share."""
