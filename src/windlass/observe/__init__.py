"""Reports for users: verdicts, timelines, and checks of machines and clusters."""
