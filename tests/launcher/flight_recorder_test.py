#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tests jobs in which a rank misses an operation. The report names the operation and the missing ranks. Every rank
leaves its last operations as a file."""
import glob
import json
import os
import re
import time

import harness

WORKER = os.path.join(harness.BIN, "flight_worker")
OPERATION = r"all_reduce #6 \(1\.0 MiB float32, sum\) of communicator 0"


class Recorder(harness.Case):
    def run_job(self, *what, per_node=2, flags=(), **more):
        self.logs = self.scratch()
        self.report = os.path.join(self.logs, "report.json")
        done = self.ddprun("--standalone", f"--nproc_per_node={per_node}", f"--log-dir={self.logs}", f"--report={self.report}",
                           *flags, WORKER, *what, **more)
        self.transcript = done.text
        return done

    def first_failure(self):
        with open(self.report) as f:
            return json.load(f)["first_failure"]

    def records(self):
        """Returns the records by rank. A file that is no JSON fails the test."""
        found = {}
        for path in glob.glob(f"{self.logs}/**/*flight_recorder.json", recursive=True):
            with open(path) as f:
                record = json.load(f)
            found[record["rank"]] = record
        return found

    def check_record(self, record, rank, sequence=6, state="failed"):
        self.assertEqual((record["version"], record["rank"], record["world_size"], record["round"]), (1, rank, 2, 1))
        self.assertEqual(record["communicators"], [{"number": 0, "backend": "host", "size": 2}])
        operations = record["operations"]
        self.assertEqual([each["number"] for each in operations], list(range(1, sequence + 1)))
        self.assertEqual({each["state"] for each in operations[:5]}, {"completed"})
        last = operations[5]
        self.assertEqual((last["kind"], last["op"], last["dtype"], last["count"], last["bytes"], last["sequence"],
                          last["root"], last["peer"], last["state"]),
                         ("all_reduce", "sum", "float32", 1 << 18, 1 << 20, 6, None, None, state))
        times = [each[key] for each in operations for key in ("scheduled_ns", "started_ns", "ended_ns")]
        self.assertEqual(times, sorted(times))
        self.assertLess(abs(times[-1] / 1e9 - time.time()), 120)

    def test_a_rank_that_skips_a_collective_is_named_with_it(self):
        done = self.run_job("sleep", "1", "800")
        self.assertEqual(done.returncode, 3, self.transcript)
        self.assertRegex(done.stderr,
                         r"operation  ?rank 1 never came to " + OPERATION + r"; rank 0 waited in it for (0\.[89]|1\.\d) s")
        failure = self.first_failure()
        self.assertRegex(failure["operation"], "rank 1 never came to " + OPERATION)
        records = self.records()
        self.assertEqual(sorted(records), [0, 1], self.transcript)
        self.check_record(records[0], 0)
        # The rank that never came was asked for its record before it was ended.
        self.assertIsNone(records[1]["failure"])
        self.assertEqual([each["state"] for each in records[1]["operations"]], ["completed"] * 5)
        why = records[0]["failure"]
        self.assertEqual((why["code"], why["missing_ranks"], why["communicator"], why["sequence"]), ("timeout", [1], 0, 6))
        self.assertGreaterEqual(why["waited_ms"], 800)
        with open(failure["flight_recorder"]) as f:  # the report names the file
            self.assertEqual(json.load(f), records[0])
        with open(self.report) as f:
            files = json.load(f)["written_by"]["flight_recorders"]
        self.assertEqual(files, sorted(glob.glob(f"{self.logs}/**/flight_recorder.json", recursive=True)))
        self.assertEqual(files[0], failure["flight_recorder"])
        pattern = re.search(r"recorder  \S+\n +all ranks of \S+: (\S+)", done.stderr)
        self.assertEqual(sorted(glob.glob(pattern.group(1))), files)
        self.assertEqual(glob.glob(f"{self.logs}/**/*.new-*", recursive=True), [])

    def test_a_rank_that_is_stopped_is_waited_for_two_seconds_and_named(self):
        begun = time.monotonic()
        done = self.run_job("stop", "1", "800", flags=["--shutdown-timeout=1"])
        self.assertEqual(done.returncode, 3, self.transcript)
        self.assertLess(time.monotonic() - begun, 30)
        self.assertIn("local rank 1 did not write its flight recorder within 2000 ms", done.stderr)
        self.assertIn(0, self.records())  # the other rank may have written its record when it was stopped

    def test_a_killed_rank_was_in_no_operation(self):
        done = self.run_job("kill")
        self.assertEqual(done.returncode, 137, self.transcript)
        self.assertRegex(done.stderr, r"operation  ?it was in none; the last one that ended was #5 of communicator 0")
        self.assertIsNone(self.first_failure()["flight_recorder"])

    def test_ranks_that_call_different_operations_are_both_named(self):
        for what, called in (("broadcast", r"broadcast\(float32 × 4, root 0\) #6"), ("size", r"all_reduce\(float32 × 262143, sum\) #6"),
                             ("dtype", r"all_reduce\(float64 × 131072, sum\) #6"), ("op", r"all_reduce\(float32 × 262144, max\) #6")):
            with self.subTest(what):
                done = self.run_job(what, per_node=2)
                self.assertEqual(done.returncode, 3, self.transcript)
                self.assertRegex(self.first_failure()["operation"], called)
                self.assertRegex(self.first_failure()["operation"], r"rank 0 called all_reduce\(float32 × 262144, sum\) #6|rank 1 called all_reduce")

    def test_a_small_recorder_holds_the_last_ones_and_one_of_size_0_writes_none(self):
        self.run_job("sleep", "1", "500", DDPRUN_FLIGHT_RECORDER_SIZE="3")
        self.assertEqual([each["number"] for each in self.records()[0]["operations"]], [4, 5, 6])
        done = self.run_job("sleep", "1", "500", DDPRUN_FLIGHT_RECORDER_SIZE="0")
        self.assertEqual(self.records(), {})
        self.assertIn("waiting for rank 1", done.stderr)
        done = self.run_job("nothing", DDPRUN_FLIGHT_RECORDER_SIZE="many")
        self.assertNotEqual(done.returncode, 0)
        self.assertIn('DDPRUN_FLIGHT_RECORDER_SIZE="many" is not a number', done.stderr)

    def test_a_directory_of_its_own(self):
        place = self.scratch()
        self.run_job("sleep", "1", "500", DDPRUN_FLIGHT_RECORDER_DIR=place)
        self.assertEqual(sorted(os.listdir(place)), ["rank_0.json", "rank_1.json"])
        with open(self.report) as f:
            report = json.load(f)
        self.assertEqual(report["first_failure"]["flight_recorder"], f"{place}/rank_0.json")
        self.assertEqual(report["written_by"]["flight_recorders"], [f"{place}/rank_0.json", f"{place}/rank_1.json"])
        missing = os.path.join(place, "none")
        done = self.run_job("sleep", "1", "500", DDPRUN_FLIGHT_RECORDER_DIR=missing)
        self.assertEqual(done.returncode, 3)
        self.assertIn(f"can't be written to {missing}/rank_0.json: No such file", done.stderr)

    def test_a_job_that_goes_well_leaves_nothing(self):
        done = self.run_job("nothing")
        self.assertEqual(done.returncode, 0, self.transcript)
        self.assertEqual(self.records(), {})


if __name__ == "__main__":
    harness.main()
