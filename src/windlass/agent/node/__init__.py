"""Code that runs in every agent: joining the lead, starting and ending ranks, keeping their output."""
