"""Why pods of a job wait, are not made, fail to start, or have ended. Pure."""
