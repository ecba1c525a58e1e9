"""Frameworks: how work is spread over ranks. One record and one file each; the client, agents and ranks
read them."""
