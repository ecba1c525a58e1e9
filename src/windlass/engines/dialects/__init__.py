"""One file per kind of cluster object that can carry a job: data and pure functions."""
