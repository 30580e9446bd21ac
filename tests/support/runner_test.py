#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The runner of the Python tests and the main of the C++ tests: SIGTERM, skips, seeds."""
import os
import re
import signal
import subprocess
import sys
import unittest

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, HERE)
import runner  # noqa: E402
import files  # noqa: E402

OUTCOMES = os.path.join(os.environ.get("DDPRUN_BIN_DIR", os.path.join(HERE, "../../build/dev/bin")), "outcomes")
ENDLESS = """
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
SKIPS = """
import unittest
import runner
class Case(unittest.TestCase):
    def test_passes(self):
        pass
    def test_fails(self):
        self.fail("on purpose")
    def test_skips(self):
        self.skipTest("no\\nroot")
    @unittest.skip("no GPU")
    def test_skips_too(self):
        pass
    def test_skips_a_part(self):
        for number in (1, 2):
            with self.subTest(number):
                if number == 1:
                    self.skipTest("no IPv6")
class Whole(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        raise unittest.SkipTest("no kernel")
    def test_never(self):
        pass
runner.main()
"""
DRAWS = """
import os, unittest
import runner, seeds
class Case(unittest.TestCase):
    def test_1(self):
        self.assertEqual(seeds.seed(), seeds.seed())
        self.assertNotIn("FAIL", os.environ)
runner.main()
"""


class SigtermTest(unittest.TestCase):
    def test_sigterm_ends_a_test_with_its_clean_ups_and_no_further_one_begins(self):
        env = {**os.environ, "PYTHONPATH": HERE, "TMPDIR": files.scratch(self)}
        test = subprocess.Popen([sys.executable, "-B", "-c", ENDLESS], env=env, text=True,
                                stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        self.addCleanup(test.kill)
        directory, child = test.stdout.readline().split()
        self.assertTrue(os.path.isdir(directory))
        test.send_signal(signal.SIGTERM)
        out, err = test.communicate(timeout=20)
        self.assertEqual((test.returncode, out), (1, "ended\n"), err)
        self.assertEqual(os.listdir(env["TMPDIR"]), [])
        self.assertFalse(os.path.exists(f"/proc/{child}"))


def run(argv, **more):
    env = {k: v for k, v in os.environ.items() if not k.startswith("DDPRUN_TEST_SEED")}
    return subprocess.run(argv, env={**env, "PYTHONPATH": HERE, **more}, text=True, timeout=60,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT)


class SkipsTest(unittest.TestCase):
    def check(self, argv, code, *skipped):
        done = run(argv)
        found = re.findall(r"^SKIPPED: (.*)$", done.stdout, re.M)
        self.assertEqual((done.returncode, sorted(found)), (code, sorted(skipped)), done.stdout)

    def python(self, *names):
        return [sys.executable, "-B", "-c", SKIPS, *names]

    def test_a_script_is_skipped_if_all_of_its_tests_are(self):
        one, two = "Case.test_skips: no root", "Case.test_skips_too: no GPU"
        self.check(self.python("Case.test_skips", "Case.test_skips_too"), 77, one, two)
        self.check(self.python("Case.test_skips", "Case.test_passes"), 0, one)
        self.check(self.python("Case.test_skips", "Case.test_fails"), 1, one)
        self.check(self.python("Case.test_passes"), 0)
        self.check(self.python("Whole"), 77, "Whole.setUpClass: no kernel")
        self.check(self.python("Case.test_skips_a_part", "Case.test_passes"), 0, "Case.test_skips_a_part: no IPv6")
        self.check([sys.executable, "-c", "import skips; skips.skip_all('no PyTorch')"], 77, "no PyTorch")

    def test_a_script_in_which_no_test_runs_fails(self):
        self.check(self.python("-k", "no_such_test"), 1)

    def test_a_program_is_skipped_if_all_of_its_cases_are(self):
        self.check([OUTCOMES, "skips"], 77, "no etcd")
        self.check([OUTCOMES, "skips,skips\\, too"], 77, "no etcd", "no root")
        self.check([OUTCOMES, "skips,passes"], 0, "no etcd")
        self.check([OUTCOMES, "skips,fails"], 1, "no etcd")
        self.check([OUTCOMES, "passes"], 0)
        self.check([OUTCOMES, "prints SKIPPED and fails"], 1, "not really")


class SeedsTest(unittest.TestCase):
    def check_kept(self, argv):
        folder = os.path.join(files.scratch(self), "seeds")

        def seed_of(code, **more):
            done = run(argv, DDPRUN_TEST_SEEDS=folder, **more)
            self.assertEqual(done.returncode, code, done.stdout)
            (seed,) = re.findall(r"DDPRUN_TEST_SEED=(\d+)$", done.stdout, re.M)
            return seed
        first = seed_of(1, FAIL="")
        self.assertEqual(seed_of(1, FAIL="", DDPRUN_TEST_SEED="7"), "7")
        self.assertEqual(seed_of(1, FAIL=""), first)
        self.assertEqual(seed_of(0), first)
        self.assertEqual(os.listdir(folder), [])
        self.assertGreater(len({seed_of(0) for _ in range(3)}), 1)

    def test_a_script_that_failed_gets_its_seed_again(self):
        script = files.write(files.scratch(self), "draws.py", DRAWS)
        self.check_kept([sys.executable, "-B", script, "-v"])

    def test_a_case_that_failed_gets_its_seed_again(self):
        self.check_kept([OUTCOMES, "draws"])


if __name__ == "__main__":
    runner.main()
