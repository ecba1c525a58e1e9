"""Jobs: run, submit, attach, and the Job handle."""
