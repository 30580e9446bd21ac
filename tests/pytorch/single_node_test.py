#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tests unchanged PyTorch programs under ddprun on one node: DDP, groups, modules, arguments, failure."""
import re

import harness


class SingleNode(harness.Job):
    def test_ddp_trains_to_what_one_process_gets(self):
        done = self.run_job("--standalone", "--nproc_per_node=2", harness.job("ddp"))
        self.assertEqual(done.returncode, 0, self.transcript)
        self.assertEqual(self.lines(done.stdout, "trained rank"),
                         ["trained rank 0 of 2", "trained rank 1 of 2"], self.transcript)

    def test_groups_barriers_and_every_store_call(self):
        done = self.run_job("--standalone", "--nproc-per-node=3", harness.job("groups"))
        self.assertEqual(done.returncode, 0, self.transcript)
        self.assertEqual(len(self.lines(done.stdout, "agreed rank")), 3, self.transcript)

    def test_a_module_runs_as_main_and_arguments_pass_untouched(self):
        arguments = ["--nproc_per_node=9", "--", "-m", "a b", "", "--help", "ä"]
        with harness.scratch() as directory:
            done = self.run_job("--standalone", "--nproc_per_node=2", "-m", "jobs.show", *arguments,
                                SHOW_DIRECTORY=directory)
            self.assertEqual(done.returncode, 0, self.transcript)
            given = harness.shown(directory)
        self.assertEqual(sorted(given), [0, 1], self.transcript)
        for worker in given.values():
            self.assertEqual(worker["argv"], arguments)
            self.assertEqual((worker["name"], worker["package"]), ("__main__", "jobs"))
            self.assertTrue(worker["own_session"] and worker["unbuffered"])

    def test_failure_is_reported_with_rank_code_and_last_words_when_restarts_run_out(self):
        done = self.run_job("--standalone", "--nproc_per_node=2", "--max-restarts=1", harness.job("fail"))
        self.assertEqual(done.returncode, 13, self.transcript)
        self.assertGreaterEqual(len(self.lines(done.stderr + done.stdout, "the last words of rank 1")), 2, self.transcript)
        reports = re.findall(r"^-{60}\n(.*?)^-{60}\n", done.stderr, re.M | re.S)
        self.assertEqual(len(reports), 1, self.transcript)
        for wanted in (r"fail\.py FAILED: the first failure was rank 1$", r"  rank +1 \(local rank 1\)$",
                       r"  ended by +exit code 13$", r"    \| the last words of rank 1$", r"ddprun exits with 13$"):
            self.assertRegex(reports[0], "(?m)" + wanted)

    def test_a_python_exception_ends_the_job_with_its_traceback_on_screen(self):
        done = self.run_job("--standalone", "--nproc_per_node=2", harness.job("raise_error"))
        self.assertEqual(done.returncode, 1, self.transcript)
        self.assertIn("ValueError: a number that is not one", done.stderr, self.transcript)

    def test_a_stopped_worker_has_its_data_loaders_until_it_has_saved(self):
        for method in ("fork", "spawn"):
            done = self.run_job("--standalone", harness.job("loader"), START_METHOD=method)
            self.assertEqual(done.returncode, 128 + 15, self.transcript)
            self.assertIn("saved 1000", done.stdout, self.transcript)
            self.assertNotIn("Traceback", done.stderr, self.transcript)

    def test_the_rank_that_the_others_wait_for_in_a_collective_is_told_with_its_stack(self):
        done = self.run_job("--standalone", "--nproc_per_node=3", "--hang-timeout=foreign=2s", harness.job("hang"))
        self.assertEqual(done.returncode, 0, self.transcript)
        # Python sleeps in select(2) before 3.11.
        self.assertRegex(done.stderr, r"hang: rank 1 \(node 0, .*\) in (clock_nanosleep|select)\(\) for [2-7]\.\d s; "
                                      r"others: 2 ranks in c10d::\S+")
        self.assertIn("py-spy in PATH would show the lines of Python", done.stderr)
        self.assertRegex(done.stderr, r"no progress: rank 1 .* for \d\.\d s: it computes.*; others: 2 ranks in c10d::")


if __name__ == "__main__":
    harness.main()
