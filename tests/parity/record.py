#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Asks the torchrun beside this Python for its answers, and keeps them in recorded/. Each case takes about 8 s.

    .venv/bin/python tests/parity/record.py            the cases that have no recording
    .venv/bin/python tests/parity/record.py NAME…      these (again)
"""
import json
import os
import sys

import answer
import cases

TORCHRUN = os.path.join(os.path.dirname(sys.executable), "torchrun")
RECORDED = os.path.join(answer.HERE, "recorded")


def path_of(case):
    return os.path.join(RECORDED, case.name + ".json")


def main(names):
    unknown = set(names) - {case.name for case in cases.CASES}
    if unknown:
        sys.exit(f"no such case: {', '.join(sorted(unknown))}")
    for case in cases.CASES:
        if case.name not in names if names else os.path.exists(path_of(case)):
            continue
        result = answer.Answer(case, [sys.executable, TORCHRUN]).result
        with open(path_of(case), "w", encoding="utf-8") as f:
            json.dump(result, f, indent=1, ensure_ascii=False)
            f.write("\n")
        print(case.name, result["exit_codes"], f"{len(result['workers'])} workers", flush=True)


if __name__ == "__main__":
    os.makedirs(RECORDED, exist_ok=True)
    main(sys.argv[1:])
