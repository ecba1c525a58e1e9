"""Frameworks: how work is spread over ranks. Each is one record in one file.

The client, agents and ranks read these records.
"""
