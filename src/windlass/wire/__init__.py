"""What crosses between agent and client: messages, status, results, logs. No sockets, no threads."""
