"""Lead of a compute: the queue of client calls, and the worlds of ranks that run them."""
