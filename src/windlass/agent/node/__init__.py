"""Runs in every agent: joins the lead, starts and ends ranks, keeps their output."""
