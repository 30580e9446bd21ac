#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Restarts a gloo job warm many times in a row. Each round's result is right, and no process' resources grow.
Usage: warm_restarts_test.py [NUM_RESTARTS], 30 by default."""
import json
import os
import sys

import harness

sys.path.insert(0, os.path.join(harness.HERE, "../support"))
import family  # noqa: E402

num_restarts = 30

# Rank 1 dies in each round but the last, once rank 0 has reported the round.
SCRIPT = r'''
import os, signal, sys
warm = "torch.distributed" in sys.modules
import json
import torch, torch.distributed as dist
import family
attempt = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
dist.init_process_group("gloo")
value = torch.full([1000], float(dist.get_rank() + attempt))
dist.all_reduce(value)
if dist.get_rank() == 0:
    with open(sys.argv[1], "a") as file:
        print(json.dumps({"attempt": attempt, "warm": warm, "sum": value[0].item(), **family.use()}), file=file)
dist.barrier()
if attempt < int(sys.argv[2]):
    if dist.get_rank() == 1:
        os.kill(os.getpid(), signal.SIGKILL if attempt % 2 else signal.SIGTERM)
    signal.pause()  # the launcher stops it
dist.destroy_process_group()
'''


class WarmRestarts(harness.Job):
    def test_each_is_right_and_nothing_grows(self):
        n = num_restarts
        with harness.scratch() as directory:
            path, told = os.path.join(directory, "train.py"), os.path.join(directory, "told")
            with open(path, "w", encoding="utf-8") as file:
                file.write(SCRIPT)
            done = self.run_job("--standalone", "--nproc_per_node=2", f"--max-restarts={n}", "--max-restart-delay=0",
                                "--preload=torch,torch.distributed", path, told, str(n), timeout=60 + 5 * n,
                                PYTHONPATH=os.path.dirname(family.__file__))
            self.assertEqual(done.returncode, 0, self.transcript[-5000:])
            with open(told, encoding="utf-8") as file:
                rounds = [json.loads(line) for line in file]
        self.assertEqual([(each["attempt"], each["warm"], each["sum"]) for each in rounds],
                         [(r, True, 2.0 * r + 1) for r in range(n + 1)])
        self.assertEqual(family.growth(rounds), [])
        print(f"{n} restarts, every one warm and right; at the end {rounds[-1]}")


if __name__ == "__main__":
    if len(sys.argv) > 1:
        num_restarts = int(sys.argv.pop(1))
    harness.main()
