#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""ddprun.launch() from scripts, and what comes of its ends."""
import os
import signal
import subprocess
import sys
import tempfile
import textwrap
import unittest

SOURCE = os.environ.get("DDPRUN_SOURCE_DIR") or os.path.join(os.path.dirname(__file__), "../..")
BIN = os.environ.get("DDPRUN_BIN_DIR", "")
sys.path.insert(0, os.path.join(SOURCE, "tests/support"))
import runner  # noqa: E402

# As a user writes it who has no cloudpickle: the workers import this script for its functions.
HEAD = """
import os, sys, time
import ddprun
sys.modules["cloudpickle"] = None
"""
MAIN = """
if __name__ == "__main__":
"""


class Launch(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name

    def start(self, functions, main, *flags):
        with open(os.path.join(self.folder, "script.py"), "w", encoding="utf-8") as script:
            script.write(HEAD + textwrap.dedent(functions) + MAIN + textwrap.indent(textwrap.dedent(main), "    "))
        environment = {k: v for k, v in os.environ.items() if not k.startswith("DDPRUN_")}
        environment.update(PYTHONPATH=os.path.join(SOURCE, "python"), DDPRUN_PROGRAM=os.path.join(BIN, "ddprun"),
                           TMPDIR=self.folder, PYTHONDONTWRITEBYTECODE="1")
        script = subprocess.Popen([sys.executable, *flags, "script.py"], cwd=self.folder, env=environment, text=True,
                                  stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        self.addCleanup(script.communicate)
        self.addCleanup(script.kill)
        return script

    def run_script(self, functions, main, *flags):
        script = self.start(functions, main, *flags)
        out, err = script.communicate(timeout=60)
        print(out, err)
        self.assertFalse([name for name in os.listdir(self.folder) if name.startswith("ddprun-launch")])
        return script.returncode, out, err

    def test_results_come_by_rank(self):
        status, out, _ = self.run_script("""
            def train(base, factor=1):
                return base + factor * int(os.environ["RANK"]), os.environ["WORLD_SIZE"]
            """, "print(ddprun.launch(train, 10, factor=5, nproc_per_node=3))")
        self.assertEqual(status, 0)
        self.assertIn("[(10, '3'), (15, '3'), (20, '3')]", out)

    def test_the_first_failure_is_an_exception_with_the_workers_traceback(self):
        status, out, err = self.run_script("""
            def helper():
                raise KeyError("no such digit")

            def train():
                if os.environ["RANK"] == "1":
                    helper()
                time.sleep(600)
            """, """
            try:
                ddprun.launch(train, nproc_per_node=2)
            except ddprun.WorkerError as error:
                print("rank", error.rank, "code", error.exit_code, "cause", repr(error.__cause__))
                print(error.traceback)
            """)
        self.assertEqual(status, 0)
        self.assertIn("rank 1 code 1 cause KeyError('no such digit')", out)
        self.assertIn("in helper\n    raise KeyError", out)
        self.assertIn("no such digit", err)  # ddprun's own report of the failure

    def test_a_worker_that_is_killed_and_one_that_comes_back(self):
        status, out, _ = self.run_script("""
            def train():
                os.kill(os.getpid(), 9)

            def comes_back():
                if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
                    raise ValueError("once")
                return "again"
            """, """
            try:
                ddprun.launch(train, nproc_per_node=1)
            except ddprun.LaunchError as error:
                print(type(error).__name__, error)
            print(ddprun.launch(comes_back, nproc_per_node=1, flags=["--max-restarts=1"]))
            """)
        self.assertEqual(status, 0)
        self.assertIn("LaunchError ddprun ended with exit code 137", out)
        self.assertIn("['again']", out)

    def test_what_cannot_be_sent_is_named(self):
        status, _, err = self.run_script("", "ddprun.launch(lambda: 1, nproc_per_node=1)")
        self.assertEqual(status, 1)
        self.assertRegex(err.splitlines()[-1], "TypeError: can't send <function <lambda> .*pip install cloudpickle")
        with subprocess.Popen([sys.executable, "-c", "import ddprun, sys\nsys.modules['cloudpickle'] = None\ndef f(): pass\nddprun.launch(f)"], text=True,
                              env={"PYTHONPATH": os.path.join(SOURCE, "python")}, stderr=subprocess.PIPE) as shell:
            self.assertIn("is defined in a notebook or a shell", shell.communicate(timeout=60)[1])

    def test_ctrl_c_stops_the_job(self):
        script = self.start("""
            def train():
                print("worker", os.getpid(), flush=True)
                time.sleep(600)
            """, """
            try:
                ddprun.launch(train, nproc_per_node=1)
            except KeyboardInterrupt:
                print("interrupted", flush=True)
            """)
        worker = int(script.stdout.readline().split()[-1])
        script.send_signal(signal.SIGINT)
        self.assertEqual(script.communicate(timeout=60)[0], "interrupted\n")
        self.assertFalse(os.path.exists("/proc/%d" % worker))

    def test_the_job_ends_with_its_script(self):
        script = self.start("""
            def train():
                print("worker", os.getpid(), flush=True)
                time.sleep(600)
            """, "ddprun.launch(train, nproc_per_node=1)")
        worker = int(script.stdout.readline().split()[-1])
        descriptor = os.pidfd_open(worker)
        script.kill()
        self.addCleanup(os.close, descriptor)
        import select
        self.assertTrue(select.select([descriptor], [], [], 60)[0])

    def test_a_notebook_shows_what_workers_print(self):
        status, out, _ = self.run_script("""
            import io

            def train():
                print("in the worker", flush=True)
            """, """
            shown, sys.stdout = sys.stdout, io.StringIO()
            ddprun.launch(train, nproc_per_node=1)
            text, sys.stdout = sys.stdout.getvalue(), shown
            print("shown:", repr(text))
            """)
        self.assertEqual(status, 0)
        self.assertIn("shown: ", out)
        self.assertIn("in the worker", out)


if __name__ == "__main__":
    runner.main()
