"""What was seen, told to people: verdicts, timelines, the state of this machine."""
