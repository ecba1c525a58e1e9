"""What users call: run, submit, attach, jobs, and the Job handle."""
