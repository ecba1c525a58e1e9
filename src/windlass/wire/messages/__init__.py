"""Every kind of message, one module per conversation. Each module ends with its directions."""
