"""The process with torch imported, of which ranks are forks."""
