def fail():
    raise OSError(2, "no such thing", "here")


fail()
