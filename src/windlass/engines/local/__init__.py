"""The engine `local`: nodes are agent processes on this machine."""
