#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tests PyTorch's DDP, over a crash, in workers that are forked from a Python with its modules (docs/warm.md)."""
import importlib.util
import os
import sys
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../launcher"))
import harness  # noqa: E402

# Trains from the last checkpoint on; rank 1 dies in the first round. A cold run prints the same.
SCRIPT = r'''
import os, sys
was_there = "torch._dynamo" in sys.modules
import torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
dist.init_process_group("gloo")
torch.manual_seed(3)
model = DistributedDataParallel(torch.nn.Linear(4, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
__import__("torch.optim.optimizer", fromlist=" ").register_optimizer_step_post_hook(lambda *_: None)  # beside ddprun's own
first, path = 0, os.path.join(os.path.dirname(__file__), "saved")
if os.path.exists(path):
    first, state = torch.load(path)
    model.load_state_dict(state)
for step in range(first, 6):
    torch.manual_seed(100 * step + dist.get_rank())
    loss = model(torch.randn(8, 4)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step == 2 and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
        if dist.get_rank() == 0:
            torch.save((step + 1, model.state_dict()), path)
        dist.barrier()
        if dist.get_rank() == 1:
            os._exit(3)
        dist.barrier()
print("weights", was_there, torch.get_num_threads(), [round(w, 5) for w in model.module.weight[0].tolist()], flush=True)
dist.destroy_process_group()
os._exit(0)  # PyTorch 2.15 aborts an exit in which one of gloo's threads drops a tensor
'''


class Warm(harness.Case):
    @classmethod
    def setUpClass(cls):
        if not importlib.util.find_spec("torch"):
            raise unittest.SkipTest("PyTorch is not installed")

    def trained(self, path, *flags):
        done = self.ddprun("--standalone", "--nproc-per-node=2", "--max-restarts=1", *flags, "--no-python", sys.executable,
                           "-u", path, timeout=200)
        self.assertEqual(done.returncode, 0, done.text)
        self.assertNotIn("--preload:", done.stderr)
        return {line.split("weights ")[1] for line in done.stdout.splitlines() if "weights" in line}

    def test_a_job_that_crashed_trains_on_as_a_cold_one(self):
        """The second job begins with the modules that the first one's workers had imported by their first step."""
        folder = self.scratch()
        arguments = (self.write(folder, "train.py", SCRIPT), "--preload=auto", f"--preload-cache={self.scratch()}")
        first = self.trained(*arguments)
        os.remove(os.path.join(folder, "saved"))
        warm = self.trained(*arguments)
        self.assertEqual(len(warm), 1)
        self.assertTrue(next(iter(warm)).startswith("True 1 "), warm)  # with one thread, as OMP_NUM_THREADS says
        self.assertEqual({line.split(" ", 1)[1] for line in first}, {line.split(" ", 1)[1] for line in warm})


if __name__ == "__main__":
    harness.runner.main()
