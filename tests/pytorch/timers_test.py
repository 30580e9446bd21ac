#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tests torch.distributed.elastic.timer (TORCHELASTIC_ENABLE_FILE_TIMER) with torch's own client, and a wrong one."""
import os
import sys
import tempfile

import harness

# Writes a timer as FileTimerClient does, without the import of torch.
SET = """
import json, os, sys, time
def send(*lines):
    with open(os.environ["TORCHELASTIC_TIMER_FILE"], "w") as pipe:
        pipe.write("".join(line + "\\n" for line in lines))
def timer(pid, after, signal=9, scope="s"):
    return json.dumps({"version": 1, "pid": pid, "scope_id": scope, "expiration_time": time.time() + after, "signal": signal})
"""


class Timers(harness.Job):
    def run_timers(self, *args, **more):
        return self.run_job("--standalone", *args, timeout=60, TORCHELASTIC_ENABLE_FILE_TIMER="1", **more)

    def python(self, code, *flags, **more):
        return self.run_timers(*flags, "--no-python", sys.executable, "-c", SET + code, **more)

    def test_torchs_client_is_served_and_a_rank_that_is_late_is_restarted(self):
        done = self.run_timers("--nproc_per_node=2", "--max-restarts=1", harness.job("timers"))
        self.assertEqual(done.returncode, 0, self.transcript)
        self.assertEqual(done.stdout.count("back in time"), 4, self.transcript)
        self.assertEqual(done.stdout.count("done in attempt 1"), 2, self.transcript)
        self.assertRegex(done.stderr, r'rank 1: timer ".*too late.*" of process \d+ has expired: sending SIGKILL')

    def test_the_report_says_which_timer_it_was(self):
        done = self.python("send(timer(os.getpid(), 0.2, 15, 'the step')); time.sleep(600)")
        self.assertEqual(done.returncode, 128 + 15, self.transcript)
        self.assertRegex(done.stderr, r'SIGTERM: timer "the step" of process \d+ has expired')

    def test_a_process_that_a_worker_started_can_set_one_too(self):
        done = self.python("""
pid = os.fork()
if pid == 0:
    send(timer(os.getpid(), 0.2)); time.sleep(600)
print("child ended by", os.waitpid(pid, 0)[1])
""")
        self.assertEqual(done.returncode, 0, self.transcript)
        self.assertIn("child ended by 9", done.stdout)

    def test_nobody_elses_process_is_touched(self):
        done = self.python(f"""
for pid in ({os.getpid()}, os.getppid(), 1):
    send(timer(pid, 0.1))
time.sleep(1); print("all live")
""")
        self.assertEqual(done.returncode, 0, self.transcript)
        self.assertIn("all live", done.stdout)
        self.assertIn(f"of process {os.getpid()} has expired, but that is no process of this node's workers", done.stderr)

    def test_an_invalid_request_is_said_and_the_next_one_heard(self):
        done = self.python("""
send("x" * 100_000, "{}", '{"pid": 1e300}', "[" * 4000, "")
send(*[timer(os.getpid(), 900, scope=str(i)) for i in range(5000)])
send(timer(os.getpid(), 0.2, scope="0")); time.sleep(600)
""")
        self.assertEqual(done.returncode, 128 + 9, self.transcript)
        self.assertIn("a request is longer than 4096 bytes", done.stderr)
        self.assertIn("a request can't be read: {}", done.stderr)
        self.assertLess(done.stderr.count("TORCHELASTIC_TIMER_FILE: "), 8, self.transcript)

    def test_the_file_is_where_the_user_wants_it_and_goes_with_the_job(self):
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "timers")
            os.mkfifo(path)  # left by an earlier job that was killed
            done = self.python("print(os.environ['TORCHELASTIC_TIMER_FILE']); send(timer(os.getpid(), 0.1)); time.sleep(600)",
                               TORCHELASTIC_TIMER_FILE=path)
            self.assertEqual((done.returncode, done.stdout), (137, path + "\n"), self.transcript)
            self.assertEqual(os.listdir(folder), [])
            with open(path, "w") as f:
                f.write("precious")
            done = self.python("print('runs')", TORCHELASTIC_TIMER_FILE=path)
            self.assertEqual((done.returncode, done.stdout), (0, "runs\n"), self.transcript)
            self.assertIn("workers have no timers: mkfifo", done.stderr)
            with open(path) as f:
                self.assertEqual(f.read(), "precious")

    def test_there_are_no_timers_without_the_variable(self):
        done = self.run_job("--standalone", "--no-python", "sh", "-c", "echo ${TORCHELASTIC_TIMER_FILE-none}")
        self.assertEqual(done.stdout, "none\n", self.transcript)


if __name__ == "__main__":
    harness.main()
