#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tests that a user's communication hook takes 20 lines. The hook in docs/compression.md is that of the program that
tests run."""
import os
import re
import sys

SOURCE = os.environ.get("DDPRUN_SOURCE_DIR", os.path.abspath(__file__ + "/../../.."))
PAGE, PROGRAM = "docs/compression.md", "examples/comm_hook/main.cc"


def main():
    with open(os.path.join(SOURCE, PAGE), encoding="utf-8") as f:
        quoted = re.findall(r"```cpp\n(class .*?)```", f.read(), re.S)
    with open(os.path.join(SOURCE, PROGRAM), encoding="utf-8") as f:
        program = f.read()
    if len(quoted) != 1:
        print(f"{PAGE}: {len(quoted)} classes are quoted, not the hook alone")
    elif quoted[0] not in program:
        print(f"{PAGE}: its hook isn't {PROGRAM}'s")
    elif quoted[0].count("\n") > 20:
        print(f"{PAGE}: its hook has {quoted[0].count(chr(10))} lines")
    else:
        return 0
    return 1


if __name__ == "__main__":
    sys.exit(main())
