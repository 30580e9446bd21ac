#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A test that SIGTERM ends does its clean-ups; no further one begins."""
import os
import signal
import subprocess
import sys
import unittest

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import runner
import files

TEST = """
import signal, subprocess, unittest
import runner, files
class Case(unittest.TestCase):
    def test_1(self):
        child = subprocess.Popen(["sleep", "100"])
        self.addCleanup(lambda: (child.kill(), child.wait(), print("ended", flush=True)))
        print(files.scratch(self), child.pid, flush=True)
        signal.pause()
    def test_2(self):
        print("began", flush=True)
runner.main()
"""


class RunnerTest(unittest.TestCase):
    def test_sigterm_ends_a_test_with_its_clean_ups(self):
        env = {**os.environ, "PYTHONPATH": os.path.dirname(os.path.abspath(__file__)),
               "TMPDIR": files.scratch(self)}
        test = subprocess.Popen([sys.executable, "-B", "-c", TEST], env=env, text=True,
                                stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        self.addCleanup(test.kill)
        directory, child = test.stdout.readline().split()
        self.assertTrue(os.path.isdir(directory))
        test.send_signal(signal.SIGTERM)
        out, err = test.communicate(timeout=20)
        self.assertEqual((test.returncode, out), (1, "ended\n"), err)
        self.assertEqual(os.listdir(env["TMPDIR"]), [])
        self.assertFalse(os.path.exists(f"/proc/{child}"))


if __name__ == "__main__":
    runner.main()
