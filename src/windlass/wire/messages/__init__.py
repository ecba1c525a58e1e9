"""Every kind of message, a file per conversation; each ends with who says what to whom."""
