# SPDX-License-Identifier: Apache-2.0
"""How the Python tests run: SIGTERM ends a test as a failure does, so that its clean-ups are done.

What started a test and gave up on it (a person, a CI's time limit) so leaves no processes and no
temporary directories behind.
"""
import signal
import sys
import unittest

TERMINATED = 128 + signal.SIGTERM


def unwind_on_sigterm(then=lambda: None):
    """From now on the first SIGTERM calls `then` and raises SystemExit; a second one kills."""
    def unwind(*_):
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        then()
        sys.exit(TERMINATED)
    signal.signal(signal.SIGTERM, unwind)


class _Result(unittest.TextTestResult):
    def startTestRun(self):
        super().startTestRun()
        unwind_on_sigterm(then=self.stop)  # unittest takes SystemExit for the failure of one test


class _Runner(unittest.TextTestRunner):
    resultclass = _Result


def main(**options):
    """unittest.main for all tests of the calling script."""
    unittest.main(testRunner=_Runner, **{"verbosity": 2, **options})
