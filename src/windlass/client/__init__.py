"""Client side: jobs, computes, and the code that both share."""
