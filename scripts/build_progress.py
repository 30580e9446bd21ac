#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Builds with ninja and shows one line: how much is done, and about how long the rest takes here.

    scripts/build_progress.py BUILD_DIR FROM-TO BEGIN TARGET…

This build is FROM to TO per cent of work that began at BEGIN (seconds since the epoch). On a terminal
the line is drawn again each second, else printed every half minute. Exits with ninja's status.
"""
import os
import re
import subprocess
import sys
import time

EDGE = re.compile(r"\[(\d+)/(\d+)\] (.*)")


def weight(folder, description):
    """Returns about how many seconds a compilation takes on one machine: some for the headers, some for each line."""
    compiled = re.search(r"Building CXX object (\S+)\.(o|gch)$", description)
    if not compiled:
        return 0.2
    torch = "torch" in description or "/train.dir/" in description
    if compiled.group(2) == "gch":
        return 80 if torch else 20
    num_lines = 300
    unity = os.path.join(folder, compiled.group(1))
    if os.path.exists(unity):
        with open(unity, encoding="utf-8") as f:
            num_lines = sum(map(num_lines_of, re.findall(r'#include "(.*)"', f.read())))
    return (15 if torch else 4) + num_lines * (0.009 if torch else 0.007)


def num_lines_of(path):
    with open(path, "rb") as f:
        return f.read().count(b"\n")


class Line:
    """Prints the line of progress."""

    def __init__(self, begin):
        self.begin = begin
        self.terminal = sys.stdout.isatty()
        self.next = time.time() + (1 if self.terminal else 30)

    def show(self, share, force=False):
        now = time.time()
        if now < self.next and not force:
            return
        self.next = now + (1 if self.terminal else 30)
        left = (now - self.begin) * (1 - share) / max(share, 0.01)
        text = f"building: {share:4.0%}"
        if share >= 0.1:  # before that only a few large files are done
            text += f", about {left / 60:.0f} min left" if left >= 60 else f", about {max(left, 1):.0f} s left"
        print(f"\r{text}   " if self.terminal else text, end="" if self.terminal else "\n", flush=True)

    def close(self):
        if self.terminal:
            print("\r" + " " * 50 + "\r", end="", flush=True)


def main():
    folder, span, begin, *targets = sys.argv[1:]
    first, last = (int(part) / 100 for part in span.split("-"))
    plan = subprocess.run(["ninja", "-C", folder, "-n", *targets], text=True, stdout=subprocess.PIPE)
    weights = {m.group(3): weight(folder, m.group(3)) for m in map(EDGE.match, plan.stdout.splitlines()) if m}
    total = sum(weights.values()) or 1
    line, done = Line(float(begin)), 0
    line.show(first, force=True)
    ninja = subprocess.Popen(["ninja", "-C", folder, *targets], text=True, stdout=subprocess.PIPE,
                             stderr=subprocess.STDOUT, env={**os.environ, "NINJA_STATUS": "[%f/%t] "})
    for text in ninja.stdout:
        edge = EDGE.match(text)
        if edge:
            done += weights.get(edge.group(3), 0)
            line.show(first + (last - first) * min(done / total, 1))
        elif not text.startswith("ninja: "):
            line.close()
            print(text, end="", flush=True)
    line.close()
    return ninja.wait()


if __name__ == "__main__":
    sys.exit(main())
