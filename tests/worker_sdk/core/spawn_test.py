#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tests spawn(), which starts ranks from inside a program (spawn_worker.cc). Pidfds tell when processes end."""
import os
import re
import select
import signal
import subprocess
import sys
import unittest

SOURCE = os.environ.get("DDPRUN_SOURCE_DIR", os.path.abspath(__file__ + "/../../../.."))
BIN = os.environ.get("DDPRUN_BIN_DIR", os.path.join(SOURCE, "build/dev/bin"))
sys.path.insert(0, os.path.join(SOURCE, "tests/support"))
import runner  # noqa: E402

WORKER = os.path.join(BIN, "spawn_worker")
JOBS_OWN = ("RANK", "WORLD_SIZE", "LOCAL_", "GROUP_", "ROLE_", "MASTER_", "TORCHELASTIC_", "DDPRUN_", "OMP_")
ENVIRONMENT = {k: v for k, v in os.environ.items() if not k.startswith(JOBS_OWN)}


def ended(pidfds, timeout=20):
    """Waits up to `timeout` seconds. Returns whether all of these processes have ended."""
    left = set(pidfds)
    poller = select.poll()
    for pidfd in left:
        poller.register(pidfd, select.POLLIN)
    while left:
        ready = poller.poll(timeout * 1000)
        if not ready:
            return False
        for pidfd, _ in ready:
            left.discard(pidfd)
            poller.unregister(pidfd)
    return True


class Spawn(unittest.TestCase):
    def run_mode(self, mode, status=0, env=None):
        """Runs the program in a mode. Returns stdout and stderr."""
        done = subprocess.run([WORKER, mode], env={**ENVIRONMENT, **(env or {})}, text=True, timeout=60,
                              stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        self.assertEqual(done.returncode, status, done)
        return done.stdout, done.stderr

    def start_waiting(self, mode, num_ranks):
        """Starts the program. Returns it, and its ranks' pidfds, when the ranks wait."""
        program = subprocess.Popen([WORKER, mode], env=ENVIRONMENT, text=True, stdout=subprocess.PIPE,
                                   stderr=subprocess.PIPE)
        self.addCleanup(lambda: (program.kill(), program.communicate()))
        pidfds = []
        for _ in range(num_ranks):
            pid = int(re.search(r"pid (\d+)", program.stdout.readline())[1])
            pidfds.append(os.pidfd_open(pid))
            self.addCleanup(os.close, pidfds[-1])
        return program, pidfds

    def test_four_ranks_reduce_and_have_their_place(self):
        out, err = self.run_mode("sum")
        expected = [f"rank {rank}/4 local {rank} sum 14 omp 1 extra more" for rank in range(4)]
        self.assertEqual(sorted(out.splitlines()), ["done", *expected])
        self.assertEqual(err, "")

    def test_omp_num_threads_is_the_users_where_it_is_set(self):
        self.assertIn("rank 3/4 local 3 sum 14 omp 2", self.run_mode("sum", env={"OMP_NUM_THREADS": "2"})[0])

    def test_the_error_of_the_rank_that_threw_is_thrown_and_the_others_are_ended(self):
        out, err = self.run_mode("throw", status=3)
        self.assertEqual(out, "Error unsupported: spawn: rank 2 of 4 failed: no such layer\n")
        self.assertIn("ddprun: rank 2: no such layer", err)
        out, err = self.run_mode("throw-slowly", status=3)
        self.assertEqual(out, "Error unsupported: spawn: rank 2 of 4 failed: no such layer\n")
        self.assertIn("ddprun: rank 0: rank 2 has destroyed its communicator", err)

    def test_a_throw_of_anything_is_an_error(self):
        self.assertIn("rank 0 of 1 failed: something that is no std::exception", self.run_mode("throw-int", 3)[0])

    def test_a_rank_that_is_killed_is_named_with_the_signal(self):
        out, _ = self.run_mode("kill", status=3)
        self.assertEqual(out, "Error peer lost: spawn: rank 1 of 3 was ended by SIGKILL\n")

    def test_a_rank_that_exits_is_named_with_the_code(self):
        self.assertEqual(self.run_mode("exit", 3)[0], "Error peer lost: spawn: rank 1 of 2 ended with exit code 9\n")

    def test_a_rank_that_ignores_sigterm_is_killed_after_the_grace(self):
        self.assertEqual(self.run_mode("deaf", 3)[0], "Error peer lost: spawn: rank 0 of 2 ended with exit code 7\n")

    def test_ranks_die_with_a_parent_that_is_killed(self):
        program, pidfds = self.start_waiting("wait", 4)
        program.kill()
        self.assertTrue(ended(pidfds))

    def test_a_signal_to_the_parent_ends_the_ranks_first_and_then_it(self):
        for number in (signal.SIGTERM, signal.SIGINT):
            with self.subTest(number):
                program, pidfds = self.start_waiting("wait", 4)
                program.send_signal(number)
                self.assertEqual(program.wait(timeout=20), -number)
                self.assertTrue(ended(pidfds, timeout=0))

    def test_the_same_signal_at_once_is_one_and_the_next_one_kills(self):
        program, pidfds = self.start_waiting("busy", 1)
        program.send_signal(signal.SIGINT)
        self.assertEqual(program.stdout.readline(), "heard\n")
        program.send_signal(signal.SIGINT)
        self.assertFalse(ended(pidfds, timeout=0.3))
        program.send_signal(signal.SIGINT)
        self.assertEqual(program.wait(timeout=20), -signal.SIGINT)

    def test_a_handler_of_the_programs_own_is_called_after_that(self):
        program, pidfds = self.start_waiting("handler", 2)
        program.send_signal(signal.SIGTERM)
        out, _ = program.communicate(timeout=20)
        self.assertTrue(ended(pidfds, timeout=0))
        self.assertEqual(program.returncode, 3)
        self.assertEqual(out, "the program's handler\nError aborted: spawn: SIGTERM came: the ranks were ended\n")

    def test_calls_that_make_no_sense_are_refused(self):
        for mode, said in (("none", "0 ranks: give 1 to 4096"), ("no-function", "there is no function to run"),
                           ("place", "options.environment has RANK, which each rank gets by itself")):
            with self.subTest(mode):
                self.assertEqual(self.run_mode(mode, 3)[0], f"Error invalid argument: spawn: {said}\n")

    def test_a_call_in_a_rank_is_refused(self):
        out, _ = self.run_mode("nested", status=3)
        self.assertRegex(out, r"Error invalid argument: spawn: rank \d of 2 failed: spawn: this process is rank \d of "
                              "a job already")
        out, _ = self.run_mode("sum", status=3, env={"RANK": "1"})
        self.assertIn("this process is rank 1 of a job already (RANK is set): start the program without ddprun", out)

    def test_a_second_call_has_ranks_of_its_own(self):
        out = self.run_mode("twice")[0].splitlines()
        self.assertEqual(sorted(out[:2]), ["first 0", "first 1"])
        self.assertEqual(sorted(out[2:]), ["done", "second 0", "second 1"])

    def test_a_thread_may_call_it(self):
        self.assertEqual(sorted(self.run_mode("threads")[0].splitlines()), ["done", "thread 0", "thread 1"])

    def test_a_rank_whose_main_takes_another_way_is_an_error(self):
        self.assertIn("ended with exit code 0 before it came to spawn(): main() has to take the same way",
                      self.run_mode("other-way", status=3)[0])

    def test_a_marker_that_no_parent_set_is_refused(self):
        self.assertIn('DDPRUN_SPAWN="1 0 77" is not from a parent', self.run_mode("sum", 3, {"DDPRUN_SPAWN": "1 0 77"})[0])

    def test_the_program_of_the_page(self):
        with open(os.path.join(SOURCE, "examples/spawn/spawn_sum.cc"), encoding="utf-8") as f:
            program = f.read().split("\n", 2)[2]
        with open(os.path.join(SOURCE, "docs/spawn.md"), encoding="utf-8") as f:
            self.assertEqual(re.search(r"```cpp\n(.*?)```", f.read(), re.S)[1], program)
        done = subprocess.run([os.path.join(BIN, "spawn_sum")], env=ENVIRONMENT, text=True, timeout=60,
                              stdout=subprocess.PIPE)
        self.assertEqual(sorted(done.stdout.splitlines()), [f"rank {rank} of 4: the sum is 6" for rank in range(4)])


if __name__ == "__main__":
    runner.main()
