"""Mistakes that a type checker must find. Each is on a line with a comment, and no other line has one."""

import windlass as wl

wl.run("train.py", nodse=2)  # wrong: unknown keyword
wl.run("train.py", nodes=[2])  # wrong: type
wl.run("train.py", start="fork_server")  # wrong: unknown choice
wl.submit("train.py", gpus="8")  # wrong
wl.submit("train.py", env=["A=1"])  # wrong
wl.Compute(gpu=8)  # wrong
wl.Compute(workers=2)  # wrong: an argument of distribute
wl.Compute(image=1)  # wrong
wl.Compute(volumes=[1])  # wrong
wl.Compute().distribute(wrokers=2)  # wrong
wl.Compute().distribute(workers=2.5)  # wrong
wl.fn(print, keep="forever")  # wrong
wl.fn(print).options(timout=2)  # wrong
wl.app("a", replicas="2")  # wrong
wl.app("a", inactivity_ttl="1h")  # wrong: an app ends when its command does
wl.compute(gpu=8)  # wrong
wl.distribute(workers=None)  # wrong
wl.get("a", engin="local")  # wrong
