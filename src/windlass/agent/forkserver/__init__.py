"""Fork server: the process that imports torch once and forks the ranks."""
