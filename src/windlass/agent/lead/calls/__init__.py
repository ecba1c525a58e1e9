"""The lead of a compute: calls of clients, their queue, and the worlds of ranks that take them."""
