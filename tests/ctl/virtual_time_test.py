#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""`ddprunctl emulate --virtual-time`: a job of a thousand nodes with every fault, by seed; a run can
be repeated, event by event; and each planted bug is found, with what repeats it."""
import json
import os
import shlex
import subprocess
import sys
import unittest

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "..", "support"))
import runner  # noqa: E402

BIN = os.environ.get("DDPRUN_BIN_DIR", os.path.join(HERE, "../../build/dev/bin"))
SLOW = bool(os.environ.get("DDPRUN_SANITIZE"))
STORM = ["--agents=12", "--kills=8", "--partitions=12", "--slow-nodes=3"]
STALE = ["workers_running", "worker_failed", "workers_succeeded", "first_step", "workers_stopped",
         "worker_request", "workers_left", "stalled", "start_round", "stop_round", "preempt", "inspect",
         "hang_verdict"]


class VirtualTime(unittest.TestCase):
    def emulate(self, *flags):
        return subprocess.run([os.path.join(BIN, "ddprunctl"), "emulate", "--virtual-time", *flags],
                              timeout=150, text=True, stdin=subprocess.DEVNULL,
                              stdout=subprocess.PIPE, stderr=subprocess.PIPE)

    def result(self, *flags):
        done = self.emulate("--json", *flags)
        self.assertEqual(done.returncode, 0, done.stderr)
        return json.loads(done.stdout)

    def violation(self, plant, seeds=40, flags=STORM):
        """Of the first seed that shows the planted bug."""
        for seed in range(1, seeds + 1):
            done = self.emulate(f"--plant={plant}", f"--seed={seed}", *flags)
            if done.returncode:
                self.assertEqual(done.returncode, 70, done.stderr)
                return done.stderr
        self.fail(f"{plant}: not found with {seeds} seeds")

    def test_a_thousand_nodes_with_every_fault(self):
        for seed in (1, 2) if not SLOW else (1,):
            with self.subTest(seed=seed):
                found = self.result("--agents=1000", "--failures=1", "--losses=2", "--kills=12",
                                    "--partitions=8", "--slow-nodes=10", "--duration=120",
                                    f"--seed={seed}")
                self.assertGreater(found["random_faults"], 15)
                self.assertGreater(found["rounds"], 6)
                self.assertGreater(found["seconds"], 120)

    def test_many_seeds_of_small_jobs(self):
        for seed in range(20 if SLOW else 100):
            with self.subTest(seed=seed):
                self.result(*STORM, f"--seed={seed}")

    def test_the_same_seed_is_the_same_run(self):
        first, again, other = (self.result(*STORM, f"--seed={seed}") for seed in (5, 5, 6))
        self.assertEqual(first, again)
        self.assertNotEqual(first["digest"], other["digest"])
        shown = self.emulate(*STORM, "--seed=5").stdout
        self.assertIn("digest " + first["digest"], shown)

    def test_budgets_end_a_job_and_all_are_told_the_same(self):
        found = self.result(*STORM, "--max-restarts=1", "--seed=3")
        self.assertIn("code 1: ", found["ended_early"])
        found = self.result(*STORM, "--max-node-losses=1", "--seed=3")
        self.assertIn("code 75: ", found["ended_early"])

    def test_the_report_repeats_the_violation(self):
        text = self.violation("hasty")
        head, command = text.splitlines()[0], text.splitlines()[-1]
        self.assertIn("an invariant was violated: ", head)
        self.assertIn(" s of virtual time)", head)
        self.assertIn("starts its workers, round ", text)
        self.assertTrue(command.startswith("to see it again: ddprunctl emulate "), command)
        words = shlex.split(command.split(": ", 1)[1])[1:]
        again = subprocess.run([os.path.join(BIN, "ddprunctl"), *words], timeout=150, text=True,
                               stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                               stderr=subprocess.PIPE)
        self.assertEqual((again.returncode, again.stderr), (70, text))

    def test_each_planted_bug_is_found_by_its_check(self):
        for plant, says in (("hasty", "it starts while workers of another round live on"),
                            ("unfenced", "it starts while workers of another round live on"),
                            ("rank-twice", "is given twice"),
                            ("rank-missing", "is given to nobody"),
                            ("no-deadline", "the rendezvous waits without a deadline"),
                            ("no-deadline-agent", "waits without a deadline"),
                            ("other-verdict", "two ends"),
                            ("unfounded-stop", "to which nothing has happened")):
            with self.subTest(plant):
                self.assertIn(says, self.violation(plant))
        with self.subTest("budget"):
            self.assertIn("allowed are 2 restarts",
                          self.violation("budget", flags=[*STORM, "--max-restarts=2"]))

    def test_a_stale_message_that_is_accepted_is_found_whatever_its_type(self):
        for message in STALE:
            with self.subTest(message):
                text = self.violation(f"stale:{message}", seeds=60).splitlines()[0]
                says = "late( [a-z_]+ of an old round| message of an old round to node)"
                if message == "start_round":  # what it starts is wrong in itself
                    says = "round [0-9]+: "
                self.assertRegex(text, says)


if __name__ == "__main__":
    runner.main()
