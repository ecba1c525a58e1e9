"""What was asked: frozen records of the standard library only."""
