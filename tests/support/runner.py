# SPDX-License-Identifier: Apache-2.0
"""Runs the Python tests: their exit status, their skips, and SIGTERM.

A script exits with 77, which ctest counts as skipped, when all of its tests were skipped. A failure wins. Each skipped
test prints "SKIPPED: Class.test: reason"; scripts/check_skips.py reads these lines.

SIGTERM ends a test as a failure does, so that its clean-ups are done. A person or a CI's time limit leaves no
processes and no temporary directories behind.
"""
import signal
import sys
import unittest

import seeds
from skips import SKIPPED

TERMINATED = 128 + signal.SIGTERM


def unwind_on_sigterm(then=lambda: None):
    """From now on the first SIGTERM calls `then` and raises SystemExit. A second one kills the process."""
    def unwind(*_):
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        then()
        sys.exit(TERMINATED)
    signal.signal(signal.SIGTERM, unwind)


class _Result(unittest.TextTestResult):
    num_passed = 0

    def startTestRun(self):
        super().startTestRun()
        unwind_on_sigterm(then=self.stop)  # unittest would take SystemExit for one test's failure

    def addSuccess(self, test):
        super().addSuccess(test)
        self.num_passed += 1

    def stopTestRun(self):
        super().stopTestRun()
        for test, reason in self.skipped:
            print(f"SKIPPED: {_name_of(test)}: {' '.join(reason.split())}", flush=True)


class _Runner(unittest.TextTestRunner):
    resultclass = _Result


def _name_of(test):
    """Returns "Class.test", or "Class.setUpClass" for a class that was skipped there."""
    test = getattr(test, "test_case", test)  # a subTest's own test
    if isinstance(test, unittest.TestCase):
        return f"{type(test).__name__}.{test._testMethodName}"
    return test.id().removeprefix("setUpClass (").removesuffix(")").rpartition(".")[2] + ".setUpClass"


def main(**options):
    """Runs all tests of the calling script, like unittest.main."""
    # A shell without job control ignores SIGINT for background processes. Each program under test would inherit that.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    result = unittest.main(testRunner=_Runner, exit=False, **{"verbosity": 2, **options}).result
    if not result.wasSuccessful():
        sys.exit(1)
    seeds.forget()
    if not result.testsRun and not result.skipped:
        sys.exit("no test ran")
    if result.skipped and not result.num_passed:
        sys.exit(SKIPPED)
