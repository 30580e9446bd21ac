#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tests how bench/run.py counts instructions and tells of goals. Counts those of `ddprun --version`, too."""
import os
import shutil
import sys
import unittest
from unittest import mock

SOURCE = os.environ.get("DDPRUN_SOURCE_DIR") or os.path.join(os.path.dirname(os.path.abspath(__file__)), "../..")
sys.path[:0] = [os.path.join(SOURCE, "tests/support"), os.path.join(SOURCE, "bench")]
import files  # noqa: E402
import launcher_rows  # noqa: E402
import measure  # noqa: E402
import row  # noqa: E402
import run  # noqa: E402
import runner  # noqa: E402


class Bench(unittest.TestCase):
    def setUp(self):
        measure.instruction_counter.cache_clear()
        self.addCleanup(measure.instruction_counter.cache_clear)

    def path_with(self, *programs):
        """Lets the next calls find these programs alone."""
        folder = files.scratch(self)
        for found in filter(None, map(shutil.which, programs)):
            os.symlink(found, os.path.join(folder, os.path.basename(found)))
        change = mock.patch.dict(os.environ, PATH=folder)
        change.start()
        self.addCleanup(change.stop)

    def test_a_machine_without_counters_counts_with_valgrind_and_says_so(self):
        self.path_with("valgrind", "valgrind.bin", "true")  # Debian's first one is a script that starts the second
        self.assertEqual(measure.instruction_counter(), "valgrind")
        self.assertIn(", are counted by valgrind", launcher_rows.start_row().note)
        turns = "i=0; while [ $i -lt %d ]; do i=$((i + 1)); done"
        few, more = (measure.million_instructions(["/bin/sh", "-c", turns % count]) for count in (0, 20_000))
        self.assertGreater(more - few, 1)  # the shell takes more than 50 instructions for a turn

    def test_a_machine_without_any_counter_says_so(self):
        self.path_with("true")
        self.assertIsNone(measure.million_instructions(["true"]))
        self.assertIn(". Nobody counts instructions here: ", launcher_rows.start_row().note)

    def test_a_goal_that_nobody_measured_has_its_line(self):
        one = row.Row("a", "b", {row.OURS: None, "theirs": None}, [row.Goal("ms", 0.8, "theirs"), row.Goal("MB", 8)])
        said = run.table(one, {row.OURS: {"ms": [7.0]}, "theirs": {"ms": [9.0]}}).splitlines()
        self.assertTrue(said[2].endswith("| ≤ 0.8 × theirs: reached |"), said)
        self.assertEqual(said[3], "| MB | – | – | ≤ 8: not measured |")

    def test_the_version_takes_at_most_6_million_instructions(self):
        # The loader takes 3 of them for OpenSSL's library. A check of each option with all before it took 6 more.
        self.assertLess(measure.million_instructions([measure.program("ddprun"), "--version"]), 6)


if __name__ == "__main__":
    runner.main()
