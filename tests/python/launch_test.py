#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tests ddprun.launch() from scripts, and its results and failures."""
import os
import signal
import subprocess
import sys
import textwrap
import unittest

SOURCE = os.environ.get("DDPRUN_SOURCE_DIR") or os.path.join(os.path.dirname(__file__), "../..")
sys.path.insert(0, os.path.join(SOURCE, "tests/support"))
import files  # noqa: E402
import package  # noqa: E402
import runner  # noqa: E402

# A script for users without cloudpickle: the workers import it for its functions.
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
        self.folder = files.scratch(self)

    def environment(self):
        return package.environment(TMPDIR=self.folder)

    def start(self, functions, main, *flags):
        files.write(self.folder, "script.py", HEAD + textwrap.dedent(functions) + MAIN + textwrap.indent(textwrap.dedent(main), "    "))
        script = subprocess.Popen([sys.executable, *flags, "script.py"], cwd=self.folder, env=self.environment(), text=True,
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

    def test_progress_of_the_function_is_told(self):
        status, out, _ = self.run_script("""
            import json

            def train():
                ddprun.step(41)
            """, """
            ddprun.launch(train, nproc_per_node=1, flags=["--events=events"])
            with open("events") as lines:
                told = [rank for line in map(json.loads, lines) if line["event"] == "progress" for rank in line["ranks"]]
            print([(rank["rank"], rank["step"]) for rank in told])
            """)
        self.assertEqual(status, 0)
        self.assertIn("(0, 41)", out)

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
        self.assertRegex(out, "LaunchError rank 0 .* was killed by SIGKILL")
        self.assertIn("['again']", out)

    def test_the_last_round_counts_and_its_first_failure(self):
        status, out, _ = self.run_script("""
            import signal, pickle

            def dies_later():
                if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
                    raise ValueError("of another round")
                os.kill(os.getpid(), 9)

            def is_stopped():
                def stop(*_):
                    raise ValueError("only because of rank 0")
                signal.signal(signal.SIGTERM, stop)
                if os.environ["RANK"] == "1":
                    print("ready", flush=True)
                    time.sleep(600)
                while os.environ["RANK"] == "0":
                    os._exit(3)

            def leaves():
                sys.exit(0 if os.environ["RANK"] == "0" else "no licence")
            """, """
            for function, flag in ((dies_later, "--max-restarts=1"), (is_stopped, "--max-restarts=0"),
                                   (leaves, "--max-restarts=0")):
                try:
                    ddprun.launch(function, nproc_per_node=2, flags=[flag])
                except ddprun.LaunchError as error:
                    again = pickle.loads(pickle.dumps(error))
                    print(type(again).__name__, again.exit_code, str(again).splitlines()[-1])
            """)
        self.assertEqual(status, 0)
        self.assertRegex(out, r"LaunchError 137 rank \d .* was killed by SIGKILL")
        self.assertRegex(out, r"LaunchError 3 rank 0 .* failed with exit code 3")
        self.assertIn("WorkerError 1 SystemExit: no licence", out)

    def test_a_rank_without_a_result_is_named(self):
        status, out, err = self.run_script("""
            def leaves():
                if os.environ["RANK"] == "0":
                    sys.exit(0)
                return 1
            """, "ddprun.launch(leaves, nproc_per_node=2)")
        self.assertEqual(status, 1)
        self.assertIn("LaunchError: these ranks ended without a result: 0", err)

    def test_a_main_module_without_a_guard_is_refused(self):
        files.write(self.folder, "bare.py", HEAD + "def f(): pass\nddprun.launch(f, nproc_per_node=1)\n")
        done = subprocess.run([sys.executable, "bare.py"], cwd=self.folder, env=self.environment(), text=True,
                              capture_output=True, timeout=60)
        self.assertEqual(done.returncode, 1)
        self.assertIn("put the call under if __name__ == '__main__':", done.stderr)

    def test_the_start_method_is_the_callers_and_the_workers_choice(self):
        status, out, _ = self.run_script("""
            import multiprocessing

            def chooses():
                multiprocessing.set_start_method("spawn")
                return multiprocessing.get_start_method()
            """, "print(ddprun.launch(chooses, nproc_per_node=1))\nmultiprocessing.set_start_method('spawn')")
        self.assertEqual((status, out), (0, "['spawn']\n"))

    def test_a_function_that_cannot_be_sent_is_named(self):
        status, _, err = self.run_script("", "ddprun.launch(lambda: 1, nproc_per_node=1)")
        self.assertEqual(status, 1)
        self.assertRegex(err.splitlines()[-1], "TypeError: can't send <function <lambda> .*pip install cloudpickle")
        with subprocess.Popen([sys.executable, "-c", "import ddprun, sys\nsys.modules['cloudpickle'] = None\ndef f(): pass\nddprun.launch(f)"], text=True,
                              env=package.VARIABLES, stderr=subprocess.PIPE) as shell:
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
                print("in the worker: \u00e9" + "x" * 200_000, flush=True)
            """, """
            shown, sys.stdout = sys.stdout, io.StringIO()
            ddprun.launch(train, nproc_per_node=1)
            text, sys.stdout = sys.stdout.getvalue(), shown
            print("shown:", repr(text))
            sys.stdout = open("ascii.txt", "w", encoding="ascii")
            ddprun.launch(train, nproc_per_node=1)  # nobody waits where it can't be shown
            sys.stdout.close()
            ddprun.launch(train, nproc_per_node=1)
            sys.stdout = shown
            """)
        self.assertEqual(status, 0)
        self.assertIn("shown: ", out)
        self.assertIn("in the worker: \u00e9", out)


if __name__ == "__main__":
    runner.main()
