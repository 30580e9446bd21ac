#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""scripts/test.sh installs only what the parts that it runs need. What it sets up and runs is replaced
here."""
import os
import shutil
import subprocess
import sys
import tempfile
import unittest

SOURCE = os.environ.get("DDPRUN_SOURCE_DIR", os.path.abspath(__file__ + "/../../.."))
sys.path.insert(0, os.path.join(SOURCE, "tests/support"))
import runner  # noqa: E402


class TestScriptTest(unittest.TestCase):
    def setUp(self):
        directory = tempfile.TemporaryDirectory()
        self.addCleanup(directory.cleanup)
        self.scripts = os.path.join(directory.name, "scripts")
        os.mkdir(self.scripts)
        shutil.copy(os.path.join(SOURCE, "scripts/test.sh"), self.scripts)
        for name in ("setup.sh", "check_arrows.py", "check_coroutines.py", "check_test_names.py", "format.sh", "fuzz.sh"):
            path = os.path.join(self.scripts, name)
            with open(path, "w") as f:
                f.write(f'#!/bin/sh\necho "{name} $*"\n')
            os.chmod(path, 0o755)

    def set_up_for(self, *arguments):
        done = subprocess.run([os.path.join(self.scripts, "test.sh"), *arguments], text=True, timeout=30,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        self.assertEqual(done.returncode, 0, done.stdout)
        return done.stdout.splitlines()[0]

    def test_the_checks_alone_need_no_pytorch(self):
        self.assertEqual(self.set_up_for("--only", "checks"), "setup.sh checks")
        self.assertEqual(self.set_up_for("--skip=asan,tsan,fuzz,tidy,release"), "setup.sh checks")

    def test_other_parts_need_all(self):
        self.assertEqual(self.set_up_for("--only=checks,fuzz"), "setup.sh full")

    def test_a_flag_without_its_value_is_one_line_and_2(self):
        for arguments, text in ((["--only"], "--only needs a part; there are: checks asan"), (["--skip"], "--skip needs a part"),
                                (["--only="], "--only needs a part"), (["--jobs"], "--jobs needs a number from 1"),
                                (["--jobs=x"], "--jobs needs a number from 1, not 'x'")):
            with self.subTest(arguments):
                done = subprocess.run([os.path.join(self.scripts, "test.sh"), *arguments], text=True, timeout=30,
                                      stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
                self.assertEqual((done.returncode, done.stdout.count("\n")), (2, 1), done.stdout)
                self.assertIn(f"test: {text}", done.stdout)

    def test_the_last_lines_say_which_tests_failed(self):
        tools = os.path.join(self.scripts, "tools")
        os.mkdir(tools)
        log = os.path.join(self.scripts, "../build/asan/Testing/Temporary/LastTestsFailed.log")
        os.makedirs(os.path.dirname(log))
        for name, what in (("cmake", "exit 0"), ("ctest", f"echo '12:first test' > '{log}'; exit 8")):
            with open(os.path.join(tools, name), "w") as f:
                f.write(f"#!/bin/sh\n{what}\n")
            os.chmod(os.path.join(tools, name), 0o755)
        environment = {**os.environ, "PATH": f"{tools}:{os.environ['PATH']}"}
        done = subprocess.run([os.path.join(self.scripts, "test.sh"), "--only=checks,asan"], text=True, timeout=30,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=environment)
        self.assertEqual(done.returncode, 1)
        self.assertEqual(done.stdout.splitlines()[-2], "test: asan: failed twice: first test;")
        self.assertIn("test: FAILED: asan; passed: checks", done.stdout)


if __name__ == "__main__":
    runner.main()
