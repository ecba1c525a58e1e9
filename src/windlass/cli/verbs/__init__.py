"""One module per verb of the command line; small verbs of one theme share a module."""
