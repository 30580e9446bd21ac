#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Measures ddprun and its peers side by side and keeps the table in docs/benchmarks.md.

    bench/run.py                 all rows (about 15 minutes), docs/benchmarks.md rewritten
    bench/run.py --only ROW      this row; the others keep their last figures (may be repeated)
    bench/run.py --quick         fewer repetitions, docs/benchmarks.md left alone
    bench/run.py --list          the rows

Needs a release build and `scripts/setup.sh bench`, for the side "wheel" also scripts/wheel.sh. Figures are medians; a ratio is the peer's median
by ours, so more is better for us. Nothing else should run on the machine.
"""
import argparse
import datetime
import json
import os
import re
import statistics
import sys
import traceback

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import measure  # noqa: E402
import rows as definitions  # noqa: E402
from row import OURS  # noqa: E402

DOCUMENT = os.path.join(measure.ROOT, "docs/benchmarks.md")
BEGIN, END = "<!--begin:{}-->", "<!--end:{}-->"
MACHINES = "| mark | machine |\n|---|---|\n"  # the page's table


def run_row(row, repeats):
    """Returns side → metric → values. A side that can't run here has the reason, a string."""
    samples = {side: {} for side in row.sides}
    for repetition in range(repeats):
        for side, once in row.sides.items():
            if isinstance(samples[side], str):
                continue
            if sys.stderr.isatty():
                print(f"\r{row.name}: {repetition + 1}/{repeats} {side:24}", end="", file=sys.stderr)
            try:
                for metric, value in once().items():
                    samples[side].setdefault(metric, []).append(value)
            except measure.Missing as reason:
                samples[side] = samples[side] or str(reason)  # figures of other repetitions stay
            except Exception as error:  # a side that fails must not hide the others' figures
                traceback.print_exc()
                lines = str(error).strip().splitlines() or [type(error).__name__]
                said = ", ".join(dict.fromkeys((lines[0], lines[-1])))
                samples[side] = "failed: " + re.sub(r"/[^\s'\",]*/", "", said)[:300]  # without this machine's folders
    if sys.stderr.isatty():
        print(f"\r{'':60}\r", end="", file=sys.stderr)
    return samples


def number(value):
    if value == 0:
        return "0"
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def is_skipped(samples):
    return all(isinstance(side, str) and side.startswith("skipped: ") for side in samples.values())


def medians(samples):
    return {side: {m: statistics.median(v) for m, v in metrics.items()}
            for side, metrics in samples.items() if not isinstance(metrics, str)}


def verdict(goal, middle):
    ours = middle.get(goal.side, {}).get(goal.metric)
    limit = goal.limit
    if goal.peer:
        theirs = middle.get(goal.peer, {}).get(goal.metric)
        limit = None if theirs is None else goal.limit * theirs
    if ours is None or limit is None:
        return "not measured"
    return "reached" if ours <= limit else "**missed**"


def table(row, samples):
    """Returns the row as a Markdown table: a line per metric, a column per side."""
    middle = medians(samples)
    # A goal's metric that nobody could measure has its line, too.
    metrics = dict.fromkeys([*(m for s in row.sides if s in middle for m in middle[s]), *(g.metric for g in row.goals)])
    sides = list(row.sides)
    lines = ["| | " + " | ".join(sides) + " | wanted |", "|---" * (len(sides) + 2) + "|"]
    for metric in metrics:
        ours = middle.get(OURS, {}).get(metric)
        cells = []
        for side in sides:
            value = middle.get(side, {}).get(metric)
            if value is None:
                cells.append("–")
            elif side == OURS or not ours:
                spread = samples[side][metric]
                cells.append(f"{number(value)} ({number(min(spread))}–{number(max(spread))})")
            else:
                cells.append(f"{number(value)} ({number(value / ours)} ×)")
        goals = [g for g in row.goals if g.metric == metric]
        wanted = "; ".join(f"{g.text()}: {verdict(g, middle)}" for g in goals)
        lines.append(f"| {metric} | " + " | ".join(cells) + (f" | {wanted} |" if wanted else " |"))
    return "\n".join(lines)


def mark_of(document, machine):
    """Returns `document` and its mark for `machine`. A new machine gets a row in the page's table."""
    marks = dict(re.findall(r"^\| (M\d+) \| (.*) \|$", document, re.M))
    for mark, text in marks.items():
        if text == machine:
            return document, mark
    mark = f"M{len(marks) + 1}"
    return document.replace(MACHINES, f"{MACHINES}| {mark} | {machine} |\n"), mark


def section(row, samples, measured):
    """Returns the row's section of the page. `measured`: when, where and how often."""
    missing = [f"\n{side}: {reason}.\n" for side, reason in samples.items() if isinstance(reason, str)]
    note = f"\n{row.note}.\n" if row.note else ""
    return (f"### {row.name}: {row.what}\n\n{table(row, samples)}\n{note}{''.join(missing)}\n"
            f"{measured}.\n")


def replace(text, name, content):
    """Returns `text` with the marked block `name` set to `content`, or appended if there is none."""
    begin, end = BEGIN.format(name), END.format(name)
    block = f"{begin}\n{content}{end}"
    if begin in text:
        return re.sub(re.escape(begin) + ".*?" + re.escape(end), lambda _: block, text, flags=re.S)
    return text.rstrip() + "\n\n" + block + "\n"


def main():
    parser = argparse.ArgumentParser(description="ddprun and its peers, side by side.")
    parser.add_argument("--only", action="append", metavar="ROW", help="this row (may be repeated)")
    parser.add_argument("--quick", action="store_true", help="fewer repetitions, nothing written")
    parser.add_argument("--list", action="store_true", help="name the rows and end")
    parser.add_argument("--json", metavar="FILE", help="all samples to FILE")
    args = parser.parse_args()
    rows = definitions.all_rows()
    if args.list:
        for row in rows:
            print(f"{row.name:12} {row.what}: {', '.join(row.sides)}")
        return 0
    unknown = set(args.only or []) - {row.name for row in rows}
    if unknown:
        parser.error(f"no row {', '.join(sorted(unknown))}; there are: {', '.join(r.name for r in rows)}")
    every = {}
    for row in rows:
        if args.only and row.name not in args.only:
            continue
        repeats = min(row.repeats, 2) if args.quick else row.repeats
        every[row.name] = samples = run_row(row, repeats)
        date = datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%d")

        def text(machine):
            if is_skipped(samples):
                return f"### {row.name}: {row.what}\n\n{samples[OURS]}.\n"
            return section(row, samples, f"{repeats} ×, {date}, {machine}")
        print(text(measure.machine()), flush=True)
        if not args.quick:
            with open(DOCUMENT, encoding="utf-8") as f:
                document = f.read()
            if is_skipped(samples) and BEGIN.format(row.name) in document:
                continue  # another machine's figures stay
            document, mark = mark_of(document, measure.machine())
            with open(DOCUMENT, "w", encoding="utf-8") as f:
                f.write(replace(document, row.name, text(mark)))
    if args.json:
        with open(args.json, "w") as f:
            json.dump(every, f, indent=1)
    skipped = [n for n, s in every.items() if is_skipped(s)]
    failed = [n for n, s in every.items() if isinstance(s[OURS], str) and n not in skipped]
    print(f"bench: {len(every) - len(skipped)} rows measured" + (f"; skipped: {', '.join(skipped)}" if skipped else "") + (f"; ours failed in: {', '.join(failed)}" if failed else ""))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
