"""Connections between the processes of a job: sockets, TLS and frames."""
