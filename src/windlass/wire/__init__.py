"""Data exchanged between agents and clients: messages, status, results, logs. No sockets, no threads."""
