#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tests that PyTorch programs compute the same in warm workers as in cold ones (docs/warm.md).
Usage: warm_programs_test.py [PARTS], by default data loaders, FSDP2 and DCP; "compiled,stepped": torch.compile."""
import os
import sys

import harness

parts = "loader:fork,loader:spawn,loader:forkserver,sharded,stepped"

# Each part prints its result. The optimizer's step comes last, so that `auto` knows the modules of all parts.
SCRIPT = r'''
import os, sys, tempfile
was_there = "torch.nn.parallel.distributed" in sys.modules
import torch, torch.distributed as dist

class Squares(torch.utils.data.Dataset):
    def __len__(self):
        return 8
    def __getitem__(self, i):
        return torch.tensor(i * i)

def loader(method):
    loaded = torch.utils.data.DataLoader(Squares(), batch_size=4, num_workers=1, multiprocessing_context=method)
    return [batch.tolist() for batch in loaded]

def sharded():
    from torch.distributed.fsdp import fully_shard
    from torch.distributed import checkpoint
    torch.manual_seed(1)
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Linear(8, 2))
    for layer in (*model, model):
        fully_shard(layer, mesh=dist.init_device_mesh("cpu", (2,)))
    torch.manual_seed(dist.get_rank())
    model(torch.randn(4, 8)).square().mean().backward()
    gradient = model[0].weight.grad.full_tensor().abs().sum().item()
    state = {"model": model.state_dict()}
    checkpoint.save(state, checkpoint_id=sys.argv[1])
    before = model[0].weight.full_tensor()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
    checkpoint.load(state, checkpoint_id=sys.argv[1])
    model.load_state_dict(state["model"])
    return round(gradient, 5), torch.equal(before, model[0].weight.full_tensor())

def compiled():
    return torch.compile(lambda x: (x.sin() + 1).square().sum())(torch.arange(8.)).item()

def stepped():
    torch.manual_seed(3)
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model(torch.randn(8, 4)).square().mean().backward()
    optimizer.step()
    return [round(w, 5) for w in model.module.weight[0].tolist()]

if __name__ == "__main__":
    dist.init_process_group("gloo")
    for part in sys.argv[2].split(","):
        name, *arguments = part.split(":")
        print("part", was_there, part, globals()[name](*arguments), flush=True)
    dist.destroy_process_group()
    os._exit(0)  # PyTorch 2.15 aborts an exit in which one of gloo's threads drops a tensor
'''


class WarmPrograms(harness.Job):
    def ran(self, directory, preload):
        """Runs the script. Returns whether the workers were warm, and the parts' results."""
        path = os.path.join(directory, "train.py")
        with open(path, "w", encoding="utf-8") as file:
            file.write(SCRIPT)
        done = self.run_job("--standalone", "--nproc_per_node=2", *preload, path, os.path.join(directory, "saved"), parts,
                            timeout=200)
        self.assertEqual(done.returncode, 0, self.transcript)
        said = [line.split(" ", 2) for line in self.lines(done.stdout, "part ")]
        self.assertEqual(len(said), 2 * len(parts.split(",")), self.transcript)
        return {was_there for _, was_there, _ in said}, sorted(text for *_, text in said)

    def test_a_warm_job_computes_what_a_cold_one_does(self):
        with harness.scratch() as directory:
            preload = ["--preload=auto", f"--preload-cache={directory}/kept"]
            was_there, cold = self.ran(directory, preload)
            self.assertEqual(was_there, {"False"})
            was_there, warm = self.ran(directory, preload)
            self.assertEqual(was_there, {"True"}, self.transcript)
        self.assertEqual(warm, cold)


if __name__ == "__main__":
    if len(sys.argv) > 1:
        parts = sys.argv.pop(1)
    harness.main()
