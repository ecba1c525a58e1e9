"""Output that a script may write: large, without a newline at the end, and bytes that are not text."""

import os
import sys

out = sys.stdout.buffer
part = sys.argv[1]
if part == "large":
    for number in range(20_000):
        print(f"line {number} " + "x" * 80)
    print("y" * 300_000)
    print("to stderr " * 20_000, file=sys.stderr)
elif part == "odd":
    print("ümlaut € 😀 \u202e")
    sys.stdout.flush()
    out.write(b"\xff\xfe no text \x00\x01\x7f\n")
    out.write(b"\x1b[31mred\x1b[0m \x1b]0;title\x07\n")
    out.flush()
    os.write(1, b"\n\n  blank lines and spaces  \n\t\n")
    print("a\tb\x0bc\x0cd\x85e\u2028f")
    sys.stderr.write("err without an end")
    print("no newline at the end", end="")
elif part == "bars":
    for percent in range(0, 101, 10):
        print(f"\r{percent:3}% done", end="", flush=True)
    print("\nafter the bar")
elif part == "children":
    print("before", flush=True)
    os.system("echo child; echo child to stderr >&2")
    print("after", flush=True)
