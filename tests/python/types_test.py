#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tests that the package `ddprun` passes mypy --strict, and compiles as Python 3.9."""
import ast
import importlib.util
import os
import subprocess
import sys
import unittest

SOURCE = os.environ.get("DDPRUN_SOURCE_DIR") or os.path.join(os.path.dirname(__file__), "../..")
PACKAGE = os.path.join(SOURCE, "python/ddprun")
sys.path.insert(0, os.path.join(SOURCE, "tests/support"))
import runner  # noqa: E402


class Types(unittest.TestCase):
    @unittest.skipUnless(importlib.util.find_spec("mypy"), "no mypy (scripts/setup.sh full)")
    def test_mypy_strict(self):
        done = subprocess.run([sys.executable, "-m", "mypy", "--strict", "--ignore-missing-imports",
                               "--follow-imports=skip", "--cache-dir=/dev/null", PACKAGE], text=True, capture_output=True, timeout=100)
        self.assertEqual((done.returncode, done.stdout), (0, done.stdout), done.stdout + done.stderr)

    def test_python_3_9(self):
        for path, _, names in os.walk(PACKAGE):
            for name in names:
                if name.endswith(".py"):
                    with open(os.path.join(path, name), encoding="utf-8") as file:
                        ast.parse(file.read(), name, feature_version=(3, 9))


if __name__ == "__main__":
    runner.main()
