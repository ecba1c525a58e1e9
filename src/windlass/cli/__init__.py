"""Command line, with one small module per verb in `cli.verbs`."""
