"""The lead of a job: when attempts start, end and are tried again, and the results they leave."""
