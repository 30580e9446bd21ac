#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Puts rows of scripts/soak.sh (standard input) into docs/benchmarks.md's table. Each replaces the row of the same
name, and gets the day and the machine. The other rows stay."""
import datetime
import os
import re
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import measure  # noqa: E402
import run  # noqa: E402

HEAD = "## Soak\n\nscripts/soak.sh; each row as of its last run.\n\n| row | what | result | time | when |\n|---|---|---|---|---|\n"


def name_of(row):
    return row.split("|")[1].strip()


def merged(document, rows, when):
    """Returns the new text of the page's block."""
    kept = re.search(re.escape(run.BEGIN.format("soak")) + "(.*?)" + re.escape(run.END.format("soak")),
                     document, re.S)
    lines = kept[1].splitlines() if kept else []
    table = {name_of(line): line for line in lines if line.count("|") == 6 and not line.startswith(("| row", "|---"))}
    table.update({name_of(row): f"{row} {when} |" for row in rows})
    notes = [line for line in lines if line and not line.startswith(("|", "#", "scripts/soak.sh"))]
    return HEAD + "".join(f"{row}\n" for row in table.values()) + "".join(f"\n{note}\n" for note in notes)


def main():
    date = datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%d")
    rows = [line.rstrip() for line in sys.stdin if line.startswith("| ")]
    with open(run.DOCUMENT, encoding="utf-8") as f:
        document = f.read()
    document, mark = run.mark_of(document, measure.machine())
    document = run.replace(document, "soak", merged(document, rows, f"{date}, {mark}"))
    with open(run.DOCUMENT, "w", encoding="utf-8") as f:
        f.write(document)


if __name__ == "__main__":
    main()
