#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What a loop says of its steps, with one line, is in the daemon's GET /v1/jobs."""
import json
import os
import sys
import urllib.request

import harness

# Rank r's losses are 1 + r; each says 100 samples twice, then waits until the test has seen it.
LOOP = """
import os, sys, time
import ddprun
rank, go_on = int(os.environ["RANK"]), sys.argv[1]
for step in range(41, 43):
    ddprun.step(step)
    ddprun.report(1 + rank, 100)
while not os.path.exists(go_on): time.sleep(0.01)
ddprun.step(43)
ddprun.report(3 + rank, 500)
while not os.path.exists(go_on + "2"): time.sleep(0.01)
ddprun.phase("evaluate")
"""


class TrainingStatus(harness.Case):
    def training(self):
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/v1/jobs", timeout=5) as answer:
                return json.load(answer)["jobs"][0].get("training")
        except (OSError, IndexError):
            return None

    def test_step_loss_and_samples_of_all_ranks(self):
        self.port = harness.free_port()
        go_on = os.path.join(self.scratch(), "go_on")
        process = self.start("--nnodes=1", "--nproc_per_node=2", f"--rdzv-endpoint=127.0.0.1:{self.port}", "--rdzv-id=job",
                             sys.executable, "-c", LOOP, go_on, PYTHONPATH=os.path.join(harness.SOURCE, "python"))
        harness.wait_until(lambda: (self.training() or {}).get("loss") == 1.5, "the ranks' mean loss is shown", 30)
        said = self.training()
        self.assertEqual(said["phase"], "train")
        self.assertIn(said["step"], (41, 42))
        open(go_on, "w").close()
        harness.wait_until(lambda: (self.training() or {}).get("step") == 43, "the next step is shown", 30)
        said = self.training()
        self.assertEqual(said["loss"], 3.5)
        self.assertGreater(said["samples_per_second"], 0)
        open(go_on + "2", "w").close()
        done = self.finish(process)
        self.assertEqual(done.returncode, 0, done.text)


if __name__ == "__main__":
    harness.main()
