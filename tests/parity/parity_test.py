#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compares ddprun with torchrun, command line by command line. cases.py has the command lines, recorded/ torchrun's
answers. Each difference must be named with a row of docs/torchrun.md, and each named difference must exist.

    parity_test.py               the cases without PyTorch against the recordings
    parity_test.py --torch       those with PyTorch
    parity_test.py --warm        the workers are forked from a warm helper (docs/warm.md); also with --torch
    parity_test.py --live        some of them against the torchrun beside this Python, too
    parity_test.py Parity.test_NAME
"""
import importlib.util
import json
import os
import re
import sys
import unittest

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "..", "support"))
import answer  # noqa: E402
import cases  # noqa: E402
import record  # noqa: E402
import runner  # noqa: E402
import skips  # noqa: E402

BIN = os.environ.get("DDPRUN_BIN_DIR", os.path.join(HERE, "../../build/dev/bin"))
SOURCE = os.environ.get("DDPRUN_SOURCE_DIR") or os.path.join(HERE, "../..")
DDPRUN = os.path.join(BIN, "ddprun")
OF_A_WORKER = ("argv", "name", "python", "write_through", "own_session")


def differences(theirs, ours):
    """Returns the places in which two answers differ → each answer's value there."""
    found = {}

    def compare(where, a, b):
        if a != b:
            found.setdefault(where, []).append(f"torchrun {a!r}, ddprun {b!r}")

    for part in ("exit_codes", "stdout", "stderr", "events", "error_file", "tree"):
        compare(part, theirs[part], ours[part])
    compare("workers", sorted(theirs["workers"]), sorted(ours["workers"]))
    for name in sorted(set(theirs["workers"]) & set(ours["workers"])):
        their_worker, our_worker = theirs["workers"][name], ours["workers"][name]
        for part in OF_A_WORKER:
            compare(part, their_worker[part], our_worker[part])
        a, b = their_worker["environment"], our_worker["environment"]
        for variable in sorted(set(a) | set(b)):
            own = variable.startswith("DDPRUN_")
            compare("environment:" + ("DDPRUN_*" if own else variable), a.get(variable), b.get(variable))
    return found


def rows_of_the_page():
    """Returns the first columns of docs/torchrun.md's tables."""
    with open(os.path.join(SOURCE, "docs", "torchrun.md"), encoding="utf-8") as f:
        return [line[2:].split(" | ")[0] for line in f if line.startswith("| ")]


def recorded(case):
    with open(record.path_of(case), encoding="utf-8") as f:
        return json.load(f)


def without_ids(result):
    """Returns the result without the random job ids in names of the log tree."""
    return json.loads(re.sub(r"logs/[0-9a-f-]{32,36}_<random>", "logs/<id>_<random>", json.dumps(result)))


class Parity(unittest.TestCase):
    maxDiff = None
    flags = ()

    def check(self, case):
        if case.pending:
            self.skipTest(f"ddprun has no {case.pending} yet")
        run = answer.Answer(case, [DDPRUN, *self.flags])
        if self.flags and "the workers run no Python script" not in run.console:
            is_warm = case.name != "package"  # a folder is no source text
            self.assertNotIn(not is_warm, run.are_warm, run.console)
        found = differences(without_ids(recorded(case)), without_ids(run.result))
        meant = {**cases.EVERYWHERE, **case.differs}
        unlisted = {where: what for where, what in found.items() if where not in meant}
        self.assertEqual(unlisted, {}, f"not in docs/torchrun.md; the console of ddprun:\n{run.console}")
        gone = {where: row for where, row in case.differs.items() if where not in found}
        self.assertEqual(gone, {}, "no difference any more: out with it")

    def test_each_difference_has_its_row(self):
        rows = rows_of_the_page()
        for case in cases.CASES:
            for where, row in {**cases.EVERYWHERE, **case.differs}.items():
                self.assertTrue(any(each.startswith(row) for each in rows),
                                f"{case.name}: {where}: docs/torchrun.md has no row {row!r}")

    def test_every_recording_has_its_case(self):
        have = {name[:-len(".json")] for name in os.listdir(record.RECORDED)}
        self.assertEqual(have, {case.name for case in cases.CASES})


class Recordings(unittest.TestCase):
    """Tests that the recorded answers are those of the installed torchrun."""

    maxDiff = None

    def check(self, case):
        self.assertEqual(answer.Answer(case, [sys.executable, record.TORCHRUN]).result, recorded(case))


def add(suite, case):
    setattr(suite, "test_" + case.name, lambda self: self.check(case))


def main():
    live, with_torch = "--live" in sys.argv, "--torch" in sys.argv
    if "--warm" in sys.argv:
        Parity.flags = ("--preload=" + ("torch.distributed.elastic.multiprocessing.errors" if with_torch else "json"),)
    sys.argv = [word for word in sys.argv if word not in ("--live", "--torch", "--warm")]
    if with_torch and importlib.util.find_spec("torch") is None:
        skips.skip_all(f"no PyTorch beside {sys.executable}")
    if live:
        if not os.path.exists(record.TORCHRUN):
            skips.skip_all(f"no torchrun beside {sys.executable}")
    for case in cases.CASES:
        if live and case.live:
            add(Recordings, case)
        if not live and case.needs_torch == with_torch:
            add(Parity, case)
    if live or with_torch:
        del Parity.test_each_difference_has_its_row, Parity.test_every_recording_has_its_case
    runner.main()


if __name__ == "__main__":
    main()
