"""How processes of a job reach each other: sockets, TLS, frames."""
