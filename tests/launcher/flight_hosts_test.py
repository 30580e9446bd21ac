#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs a job on two hosts. Each host's report names the operation, and the ranks that are missing from it."""
import glob
import json
import os

import harness

PORT = 29400
WORKER = os.path.join(harness.BIN, "flight_worker")
OPERATION = r"all_reduce #6 \(1\.0 MiB float32, sum\) of communicator 0"


class TwoHosts(harness.HostsCase):
    def records(self):
        found = {}
        for path in sorted(glob.glob(f"{self.logs}/**/flight_recorder.json", recursive=True)):
            with open(path) as f:
                found[path] = json.load(f)
        return found

    def run_job(self, *what, flags=()):
        logs = self.scratch()
        self.logs = logs
        done = self.on_hosts(self.hosts, lambda h: [
            "--nnodes=2", "--nproc_per_node=2", f"--rdzv-endpoint={self.hosts[0].address}:{PORT}", "--rdzv-id=job",
            "--shutdown-timeout=1", f"--node-rank={h.index}", f"--log-dir={logs}/{h.index}",
            f"--report={logs}/report{h.index}.json", *flags, WORKER, *what])
        return done

    def test_a_rank_of_the_other_host_is_named_on_both(self):
        for each in self.run_job("sleep", "3", "1000"):
            self.assertEqual(each.returncode, 3, self.transcript)
            self.assertRegex(each.stderr, r"operation  ?rank 3 never came to " + OPERATION + r"; ranks 0–2 waited in it for 1\.\d s")
        # All ranks of both hosts left their records, also the one that never came. Each host's report names its own
        # records.
        records = self.records()
        self.assertEqual(sorted(each["rank"] for each in records.values()), [0, 1, 2, 3], self.transcript)
        for record in records.values():
            last = record["operations"][-1]
            missing = record["rank"] == 3
            self.assertEqual((last["sequence"], last["state"] == "completed"), (5, True) if missing else (6, False))
        for index in (0, 1):
            with open(f"{self.logs}/report{index}.json") as f:
                files = json.load(f)["written_by"]["flight_recorders"]
            self.assertEqual(files, [path for path in records if path.startswith(f"{self.logs}/{index}/")])

    def test_a_hang_names_the_operation_that_the_others_wait_in(self):
        for each in self.run_job("sleep", "3", flags=["--hang-timeout=first=2s"]):
            self.assertEqual(each.returncode, 124, self.transcript)
            self.assertIn("the first failure was rank 3", each.stderr)
            self.assertRegex(each.stderr, r"operation  ?rank 3 never came to " + OPERATION + r"; ranks 0–2 wait in it for \d\.\d s")
        # Every rank was asked for its record, also the one that hangs. The others may write another one when they are
        # stopped, because the first rank that ends is a lost peer for them.
        records = {}
        for record in self.records().values():
            operation = record["operations"][-1]
            records[record["rank"]] = (operation["sequence"], operation["state"].replace("failed", "started"))
            if record["rank"] == 3:
                self.assertIsNone(record["failure"])
        self.assertEqual(records, {0: (6, "started"), 1: (6, "started"), 2: (6, "started"), 3: (5, "completed")},
                         self.transcript)


if __name__ == "__main__":
    harness.main_on_hosts()
