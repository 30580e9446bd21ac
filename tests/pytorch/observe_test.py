#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tests that ddprun observes a running plain PyTorch program, without an effect on the program (docs/observe.md)."""
import contextlib
import glob
import importlib.util
import io
import itertools
import json
import os
import re
import shutil
import signal
import struct
import subprocess
import sys
import threading
import types
import unittest
import unittest.mock
import urllib.request
import warnings

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../launcher"))
import harness  # noqa: E402

PATH = os.path.dirname(sys.executable) + ":" + os.environ["PATH"]  # has the tests' own py-spy

# Trains until a file exists. Rank 1's data come late. Reports its environment, and how long a step took.
SCRIPT = r'''
import json, os, sys, time
import torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset
folder, rank = os.path.dirname(os.path.abspath(__file__)), int(os.environ["RANK"])

class Data(Dataset):
    def __len__(self):
        return 1 << 20
    def __getitem__(self, i):
        time.sleep((0.03 if "VARIES" not in os.environ else 0.02 if i % 7 == 6 else 0.04) * rank)
        return torch.full((4,), float(i % 7))

dist.init_process_group("gloo")
os.environ["LOCAL_RANK"] = "0"  # as some do beside CUDA_VISIBLE_DEVICES
model = DistributedDataParallel(torch.nn.Linear(4, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
ended_at, in_backward, skipped = [], 0, 0
scaler = torch.amp.GradScaler("cpu", growth_interval=4) if os.environ.get("SCALES") else None
if os.environ.get("HAS_GPU"):
    torch.cuda.is_initialized, torch.cuda.max_memory_allocated = lambda: True, lambda: (1 + rank) << 30
for x in DataLoader(Data(), int(os.environ.get("BATCH", 1))):
    optimizer.zero_grad()
    for _ in range(int(os.environ.get("BACKWARDS", 1))):
        loss = model(x).square().mean()
        begin = time.monotonic()
        if scaler:
            loss = scaler.scale(loss) * (1 if len(ended_at) % 5 else float("inf"))
        loss.backward()
        in_backward += time.monotonic() - begin
    if scaler:
        scale = scaler.get_scale()
        scaler.step(optimizer)
        scaler.update()
        skipped += scaler.get_scale() < scale
    else:
        optimizer.step()
    if os.environ.get("TELLS_LOSS"):
        import ddprun
        ddprun.report(2.5, 1)
    ended_at.append(time.monotonic())
    if len(ended_at) == 100:
        open(folder + "/hundred", "w").close()
    over = torch.tensor(int(os.path.exists(folder + "/over")))
    dist.all_reduce(over)
    if over:
        break
said = {"steps": len(ended_at) - skipped, "skipped": skipped, "mean": (ended_at[-1] - ended_at[0]) / (len(ended_at) - 1),
        "backward": in_backward / len(ended_at), "torch": torch.__version__, "PYTHONPATH": os.environ.get("PYTHONPATH"), "site": getattr(sys, "users_site", None),
        "path": [entry for entry in sys.path if "observe" in entry]}
with open(f"{folder}/said{rank}", "w") as file:
    json.dump(said, file)
dist.destroy_process_group()
os._exit(0)  # PyTorch 2.15 aborts an exit in which one of gloo's threads drops a tensor
'''


# Rank 1 doesn't come to a collective until a file exists.
WAITS = r'''
import os, time
import torch, torch.distributed as dist
folder, rank = os.path.dirname(os.path.abspath(__file__)), int(os.environ["RANK"])
dist.init_process_group("gloo")
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
model(torch.ones(2, 4)).mean().backward()
optimizer.step()
print("begun", dist.group.WORLD._get_sequence_number_for_group(), flush=True)
dist.barrier()
while rank == 1 and not os.path.exists(folder + "/over"):
    time.sleep(0.01)
dist.all_reduce(torch.ones(1))
os._exit(0)  # PyTorch 2.15 aborts an exit in which one of gloo's threads drops a tensor
'''


# Scripts as one writes them. Rank 1's data come late. They end once a file exists. The loss of those that log one is a
# number until another file exists.
LIGHTNING = r'''
import os, time
import torch
import lightning.pytorch as pl
folder = os.path.dirname(os.path.abspath(__file__))

class Model(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 1)
    def training_step(self, batch, _):
        self.log_dict({"train_loss": torch.tensor(float("nan") if os.path.exists(folder + "/nan") else 2.5), "val_loss": 1.0, "rate": 3.0})
        return self.layer(batch).square().mean()
    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=1e-4)
    def on_train_batch_end(self, *_):
        self.trainer.should_stop = self.trainer.strategy.reduce_boolean_decision(os.path.exists(folder + "/over"))

class Data(torch.utils.data.Dataset):
    def __len__(self):
        return 1 << 20
    def __getitem__(self, _):
        time.sleep(0.04 * int(os.environ["RANK"]))
        return torch.randn(4)

trainer = pl.Trainer(accelerator="cpu", devices=2, strategy="ddp", max_epochs=-1, log_every_n_steps=1, logger=False, enable_checkpointing=False,
                     enable_progress_bar=False, enable_model_summary=False)
trainer.fit(Model(), torch.utils.data.DataLoader(Data(), batch_size=2))
torch.distributed.destroy_process_group()
import os; os._exit(0)  # PyTorch 2.15 aborts an exit in which one of gloo's threads drops a tensor
'''
TRAINER = r'''
import os, time
import torch, transformers
folder = os.path.dirname(os.path.abspath(__file__))

class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 1)
    def forward(self, x):
        return {"loss": 0 * self.layer(x).mean() + (float("nan") if os.path.exists(folder + "/nan") else 2.5)}

class Data(torch.utils.data.Dataset):
    def __len__(self):
        return 1 << 20
    def __getitem__(self, _):
        time.sleep(0.02 * int(os.environ["RANK"]))
        return {"x": torch.randn(4)}

class Ends(transformers.TrainerCallback):
    def on_step_end(self, arguments, state, control, **_):
        over = torch.tensor(int(os.path.exists(folder + "/over")))
        torch.distributed.all_reduce(over)
        control.should_training_stop = bool(over)

arguments = transformers.TrainingArguments(folder, max_steps=10**6, per_device_train_batch_size=4, use_cpu=True, ddp_backend="gloo", report_to="none",
                                           save_strategy="no", disable_tqdm=True, logging_steps=1, logging_nan_inf_filter=False)
trainer = transformers.Trainer(Model(), arguments, train_dataset=Data(), callbacks=[Ends()])
trainer.remove_callback(transformers.PrinterCallback)
trainer.train()
torch.distributed.destroy_process_group()
import os; os._exit(0)  # PyTorch 2.15 aborts an exit in which one of gloo's threads drops a tensor
'''
# A small GPT that learns bytes, with accumulated gradients, a schedule, and evaluations between.
GPT = r'''
import math, os, time
import torch, torch.distributed as dist
from torch import nn
from torch.nn import functional as F
folder, rank = os.path.dirname(os.path.abspath(__file__)), int(os.environ["RANK"])
block, width, heads, batch, micro_steps = 16, 32, 2, 4, 2
text = torch.frombuffer(bytearray(open(__file__, "rb").read()), dtype=torch.uint8).long() % 128

class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.before, self.after = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
    def forward(self, x):
        q, k, v = (part.unflatten(2, (heads, -1)).transpose(1, 2) for part in self.qkv(self.before(x)).chunk(3, 2))
        x = x + self.out(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))
        return x + self.mlp(self.after(x))

class Gpt(nn.Module):
    def __init__(self):
        super().__init__()
        self.tokens, self.places = nn.Embedding(128, width), nn.Embedding(block, width)
        self.blocks, self.head = nn.Sequential(Block(), Block()), nn.Linear(width, 128)
    def forward(self, x, y):
        logits = self.head(self.blocks(self.tokens(x) + self.places.weight))
        return logits, F.cross_entropy(logits.flatten(0, 1), y.flatten())

def get_batch():
    time.sleep(0.05 * rank)
    begins = torch.randint(len(text) - block - 1, (batch,))
    return (torch.stack([text[i + shift:i + shift + block] for i in begins]) for shift in (0, 1))

dist.init_process_group("gloo")
model = nn.parallel.DistributedDataParallel(Gpt())
optimizer = torch.optim.AdamW(model.parameters(), betas=(0.9, 0.95))
over, step = torch.tensor(0), 0
x, y = get_batch()
while not over:
    for group in optimizer.param_groups:
        group["lr"] = 1e-3 * (1 + math.cos(step / 1000)) / 2
    if step % 50 == 0:
        model.eval()
        with torch.no_grad():
            losses = [model.module(*get_batch())[1].item() for _ in range(4)]
        model.train()
    for micro_step in range(micro_steps):
        model.require_backward_grad_sync = micro_step == micro_steps - 1
        _, loss = model(x, y)
        x, y = get_batch()
        (loss / micro_steps).backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    step += 1
    over.fill_(os.path.exists(folder + "/over"))
    dist.all_reduce(over)
dist.destroy_process_group()
os._exit(0)  # PyTorch 2.15 aborts an exit in which one of gloo's threads drops a tensor
'''
# Rank 0 logs to TensorBoard, rank 1 to Weights & Biases.
BOARDS = r'''
import os
import torch, torch.distributed as dist
from torch.utils.tensorboard import SummaryWriter
folder, rank = os.path.dirname(os.path.abspath(__file__)), int(os.environ["RANK"])
dist.init_process_group("gloo")
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
if rank == 0:
    board = SummaryWriter(folder + "/board")
else:
    import wandb
    run = wandb.init(mode="offline", dir=folder)
over, step = torch.tensor(0), 0
while not over:
    optimizer.zero_grad()
    model(torch.randn(8, 4)).square().mean().backward()
    optimizer.step()
    loss, step = torch.tensor(float("nan") if os.path.exists(folder + "/nan") else 2.5), step + 1
    if rank == 0:
        board.add_scalar("Loss/train", loss, step)
        board.add_scalar("Loss/val", 1.0, step)
    else:
        wandb.log({"train/loss": loss, "val/loss": 1.0})
    over.fill_(os.path.exists(folder + "/over"))
    dist.all_reduce(over)
if rank == 1:
    run.finish()
dist.barrier()
os._exit(0)  # PyTorch 2.15 aborts an exit in which one of gloo's threads drops a tensor
'''


# Rank 1's steps take longer. The layers' collectives are those of FSDP, called by Python.
FSDP = r'''
import os, time
import torch, torch.distributed as dist
from torch.distributed.fsdp import fully_shard
folder, rank = os.path.dirname(os.path.abspath(__file__)), int(os.environ["RANK"])
if os.environ["BACKEND"] == "ddprun":
    import ddprun.torch
dist.init_process_group(os.environ["BACKEND"])
model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 2))
fully_shard(model, mesh=dist.device_mesh.init_device_mesh("cpu", (2,)))
optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
over = torch.tensor(0)
while not over:
    time.sleep(0.05 * rank)
    optimizer.zero_grad()
    model(torch.ones(2, 4)).square().mean().backward()
    optimizer.step()
    over.fill_(os.path.exists(folder + "/over"))
    dist.all_reduce(over)
os._exit(0)  # PyTorch 2.15 aborts an exit in which one of gloo's threads drops a tensor
'''


# Its loaders have a smaller last batch, processes that load ahead, and are left in the middle. At the end there are two at
# once, whose samples are those of no step.
LOADERS = r'''
import torch
from torch.utils.data import DataLoader, TensorDataset
data, model = TensorDataset(torch.ones(10, 4)), torch.nn.Linear(4, 1)
optimizer, trained = torch.optim.SGD(model.parameters(), lr=1e-4), 0

def step(x):
    model(x).mean().backward()
    optimizer.step()
    return len(x)

for processes in 0, 2:
    loader = DataLoader(data, batch_size=4, num_workers=processes, persistent_workers=processes > 0)
    for most in 99, 1, 99:
        for _, (x,) in zip(range(most), loader):
            trained += step(x)
for (x,), _ in zip(DataLoader(data, batch_size=2), DataLoader(data, batch_size=5)):
    step(x)
for x in DataLoader(data, batch_size=None):
    step(*x)
print("trained", trained, flush=True)
'''


# A thread of gloo comes to drop a tensor, for which it wants the GIL. The main thread has it until Python ends.
ENDS = r'''
import atexit, sys, time

def end():
    sys.setswitchinterval(0.1)  # so that it is not asked for the GIL
    dist.all_reduce(torch.ones(1), async_op=True)
    until = time.monotonic() + 0.06
    while time.monotonic() < until:  # whatever looked at the thread would give the GIL away
        pass

atexit.register(end)  # before PyTorch's own ones, so it comes after them
import torch, torch.distributed as dist
dist.init_process_group("gloo")
'''


# A process group in Python, of another backend. It has one collective by its old name, and one that ends in PyTorch's.
OWN_GROUP = r'''
import os
import torch, torch.distributed as dist

class Done(dist.Work):
    def wait(self, timeout=None):
        return True

class Group(dist.ProcessGroup):
    def __init__(self, store, rank, size, timeout):
        super().__init__(store, rank, size)
        cpu, gloo = torch.device("cpu"), dist.ProcessGroup.BackendType.GLOO
        self._set_default_backend(gloo)
        self._register_backend(cpu, gloo, dist.group.WORLD._get_backend(cpu))
    def getBackendName(self):
        return "own"
    def alltoall_base(self, output, input, *_):
        output.copy_(input).add_(1)
        return Done()
    def allgather_into_tensor_coalesced(self, outputs, inputs, *_):
        outputs[0].copy_(inputs[0]).add_(2)
        return Done()
    def allreduce(self, tensors, options):
        tensors[0].add_(3)
        return super().allreduce(tensors, options)

dist.Backend.register_backend("own", Group, devices=["cpu"])
dist.init_process_group("gloo")
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
model(torch.ones(2, 4)).mean().backward()
optimizer.step()
group, given, outputs = dist.new_group(backend="own"), torch.zeros(1), torch.zeros(4, 1)
dist.all_to_all_single(outputs[0], given, group=group)
group.all_gather_single_coalesced([outputs[1]], [given]).wait()
dist.all_reduce(outputs[2], group=group)
dist.broadcast(outputs[3], src=0, group=group)  # the group doesn't have it
print(type(group).__name__, outputs.flatten().tolist(), dist.ProcessGroup.broadcast is Group.broadcast, flush=True)
os._exit(0)  # at an exit libraries that PyTorch imports say what they leak
'''


class Observed(harness.Case):
    SCRIPT = SCRIPT

    def setUp(self):
        self.port, self.folder = harness.free_port(), self.scratch()
        self.script = self.write(self.folder, "train.py", self.SCRIPT)
        self.write(self.folder, "sitecustomize.py", "import sys\nsys.users_site = 'imported'\n")

    def job(self):
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/v1/jobs", timeout=5) as answer:
                return json.load(answer)["jobs"][0]
        except (OSError, IndexError):
            return {}

    def training(self):
        return self.job().get("training") or {}

    def begin(self, *flags, **more):
        return self.start("--nnodes=1", "--nproc-per-node=2", f"--rdzv-endpoint=127.0.0.1:{self.port}", *flags,
                          sys.executable, self.script, OMP_NUM_THREADS="1", **{"PYTHONPATH": self.folder, **more})

    def check_rest(self):
        """Is for what more is to be checked of a job, whose start takes long."""


@unittest.skipIf(importlib.util.find_spec("torch") is None, "no PyTorch: scripts/setup.sh full")
class Observe(Observed):
    def end(self, process):
        """Ends the job. Returns the ranks' reports, and the job's stderr."""
        self.write(self.folder, "over", "")
        done = self.finish(process, timeout=60, code=0)
        said = []
        for rank in range(2):
            with open(f"{self.folder}/said{rank}") as file:
                said.append(json.load(file))
            self.assertEqual((said[-1]["site"], said[-1]["path"]), ("imported", []))
        return said, done.stderr

    def progress(self):
        """Returns the ranks of each "progress" event."""
        with open(f"{self.folder}/events") as file:
            return [event["ranks"] for event in map(json.loads, file) if event["event"] == "progress"]

    def check_seen(self, *flags, loss=None, **more):
        process = self.begin(f"--events={self.folder}/events", *flags, **more)
        harness.wait_until(lambda: (self.training().get("step_parts") or {}).get("ranks") == 2 and
                           self.training()["step"] > 50, "both ranks' steps are seen", 60)
        seen = self.seen = self.training()
        said, self.stderr = self.end(process)
        self.assertEqual((seen["phase"], seen["loss"]), ("train", loss))
        self.assertLessEqual(seen["step"], said[0]["steps"])
        self.assertEqual(seen["framework"], f"PyTorch {said[0]['torch']}, gloo, 2 ranks")
        self.assertEqual({rank.get("framework") for rank in self.progress()[0]}, {seen["framework"]})
        parts = seen["step_parts"]
        self.assertAlmostEqual(parts["step_seconds"]["mean"] / said[0]["mean"], 1, delta=0.2)
        self.assertEqual(parts["loader_seconds"]["worst_rank"], 1)
        self.assertGreater(parts["loader_seconds"]["worst"], 0.03)
        self.assertLess(parts["loader_seconds"]["mean"], 0.75 * parts["loader_seconds"]["worst"])
        self.assertEqual({each["PYTHONPATH"] for each in said}, {more.get("PYTHONPATH", self.folder)})
        return said

    def test_steps_their_time_and_the_wait_for_data_of_each_rank_are_seen(self):
        self.check_seen()

    # Checks the parts of steps. Rank 0 waits in backward() for rank 1, whose data come late.
    def check_parts(self, backwards):
        process = self.begin(BACKWARDS=str(backwards))
        harness.wait_until(lambda: self.job().get("stragglers") and self.training()["step"] > 150, "the straggler is named", 60)
        # The first message may have steps whose parts aren't known yet. The next one has the parts of its own steps.
        harness.wait_until(lambda: self.training()["step_parts"]["bytes_per_step"] == 20 * backwards, "all parts are of these steps", 60)
        job = self.job()
        said, _ = self.end(process)
        self.assertRegex(" ".join(job["stragglers"]), r"^rank 1 \(node 0, \S+\): \d+\.\d ms of its own per step, the median of 2 ranks is ")
        parts = job["training"]["step_parts"]
        for name in ("exposed_seconds", "communication_seconds"):
            self.assertEqual(parts[name]["worst_rank"], 0, name)
            self.assertGreater(parts[name]["worst"], 0.02, name)  # rank 1's data take 30 ms
            self.assertLess(parts[name]["worst"], 3 * said[0]["backward"], name)
        for name in ("forward_seconds", "backward_seconds"):
            self.assertGreater(parts[name]["mean"], 0, name)
            self.assertLess(parts[name]["worst"], parts["exposed_seconds"]["worst"], name)
        self.assertEqual(parts["bytes_per_step"], 20 * backwards)  # five float32 gradients

    def test_the_wait_in_collectives_tells_which_rank_the_others_wait_for(self):
        self.check_parts(1)

    def test_the_parts_of_all_backwards_of_a_step_count(self):
        self.check_parts(2)

    # Every seventh step of rank 1 takes half as long, and those are the ones whose times PyTorch takes if it takes one in seven.
    def test_the_wait_in_backward_is_what_the_script_measured_though_it_differs_from_step_to_step(self):
        said = self.check_seen(VARIES="1")
        waits, steps, before = 0, 0, 1  # the first step has no time
        for rank in (ranks[0] for ranks in self.progress()):
            waits += (rank["exposed_seconds"] or 0) * (rank["step"] - before)
            steps, before = steps + rank["step"] - before, rank["step"]
        self.assertAlmostEqual(waits / steps / said[0]["backward"], 1, delta=0.15)

    def test_the_samples_of_the_data_loader_count_for_each_rank_and_for_all(self):
        said = self.check_seen(BATCH="2")
        self.assertEqual([rank["samples"] for rank in self.progress()[-1]], [2 * each["steps"] for each in said])
        self.assertAlmostEqual(self.seen["samples_per_second"] * said[0]["mean"] / 4, 1, delta=0.3)

    def test_the_metrics_of_a_node_have_each_rank_s_wait_in_collectives_and_its_framework(self):
        port = harness.free_port()
        process = self.begin(f"--metrics=127.0.0.1:{port}")

        def page():
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5) as answer:
                    return answer.read().decode()
            except OSError:
                return ""

        def seconds(family, rank):
            found = re.search(r'^ddprun_worker_%s_seconds_total{local_rank="%d"} (\S+)$' % (family, rank), page(), re.M)
            return float(found[1]) if found else 0

        harness.wait_until(lambda: seconds("exposed", 0) > 1, "rank 0 has waited for a second", 60)
        shown = page()
        self.assertLess(seconds("exposed", 0), 1.001 * seconds("communication", 0))
        self.assertLess(3 * seconds("exposed", 1), seconds("exposed", 0))
        said, _ = self.end(process)
        for rank in range(2):
            self.assertIn(f'ddprun_worker_info{{local_rank="{rank}",framework="PyTorch {said[0]["torch"]}, gloo, 2 ranks"}} 1\n', shown)

    def test_steps_that_a_gradient_scaler_skips_are_counted_and_are_no_steps(self):
        said = self.check_seen(SCALES="1")
        self.assertGreater(said[0]["skipped"], 10)
        last = self.progress()[-1]
        self.assertEqual([rank["skipped_steps"] for rank in last], [each["skipped"] for each in said])
        self.assertEqual([rank["step"] for rank in last], [each["steps"] for each in said])

    def test_the_gpu_memory_that_each_rank_had_at_most_is_seen(self):
        self.check_seen(HAS_GPU="1")
        self.assertEqual([rank["gpu_memory_peak_bytes"] for rank in self.progress()[-1]], [1 << 30, 2 << 30])
        self.assertEqual(self.seen["gpu_memory_peak"], {"bytes": 2 << 30, "rank": 1})

    def test_workers_that_begin_with_their_imports_done_are_seen_too(self):
        self.check_seen("--preload=torch", LOGLEVEL="INFO")
        self.assertIn("; 2 of 2 began warm\n", self.stderr)

    def test_a_program_that_tells_its_loss_alone_has_both(self):
        self.check_seen(loss=2.5, TELLS_LOSS="1", PYTHONPATH=self.folder + ":" + os.path.join(harness.SOURCE, "python"))

    def test_a_folder_that_a_script_puts_first_stays_and_ours_goes(self):
        code = "import os, sys; print(os.environ['PYTHONPATH'], [entry for entry in sys.path if 'observe' in entry])"
        done = self.ddprun("--standalone", "sh", "-c", f'PYTHONPATH="/first:$PYTHONPATH" {sys.executable} -c "{code}"',
                           code=0, PYTHONPATH="/last")
        self.assertEqual(done.stdout, "/first:/last []\n")

    def test_a_full_disk_costs_the_observation_alone(self):
        if subprocess.run(["unshare", "-m", "true"], capture_output=True).returncode != 0:
            self.skipTest("needs root, for a small disk")
        disk = self.scratch()
        done = self.finish(self.start("-m", "sh", "-c", f"mount -t tmpfs -o size=8k none {disk} && TMPDIR={disk} {harness.DDPRUN} --standalone"
                                      f" {sys.executable} -c 'import os; print(os.environ.get(\"PYTHONPATH\"))'", program="unshare"), code=0)
        self.assertEqual(done.stdout, "None\n")
        self.assertIn("can't be observed", done.stderr)

    def test_nothing_is_looked_at_where_it_is_off(self):
        process = self.begin("--observe=off")
        harness.wait_until(lambda: os.path.exists(f"{self.folder}/hundred"), "100 steps are done", 60)
        self.assertEqual(self.training(), {})
        self.end(process)

    def test_nothing_is_left_of_a_ddprun_that_was_killed(self):
        process = self.begin(TMPDIR=self.folder)
        harness.wait_until(lambda: os.path.exists(f"{self.folder}/hundred"), "100 steps are done", 60)
        self.assertEqual(len(glob.glob(f"{self.folder}/ddprun-*/observe/sitecustomize.py")), 1)
        process.kill()
        harness.wait_until(lambda: not glob.glob(f"{self.folder}/ddprun-*"), "the warden has removed the folder", 30)

    def test_an_agent_that_does_not_answer_costs_the_worker_one_line(self):
        script = ("import os\nif os.environ['RANK'] == '0': os.unlink(os.environ['DDPRUN_AGENT_SOCKET'])\n" + SCRIPT)
        self.script = self.write(self.folder, "train.py", script)
        process = self.begin()
        harness.wait_until(lambda: os.path.exists(f"{self.folder}/hundred"), "100 steps are done", 60)
        _, stderr = self.end(process)
        self.assertEqual(stderr.count("steps are not observed"), 2, stderr)


@unittest.skipIf(importlib.util.find_spec("torch") is None, "no PyTorch: scripts/setup.sh full")
class Ends(harness.Case):
    def test_a_thread_of_gloo_that_wants_the_gil_at_python_s_end_aborts_no_worker(self):
        script = self.write(self.scratch(), "ends.py", ENDS)
        done = self.ddprun("--standalone", "--nproc-per-node=2", sys.executable, script, code=0, OMP_NUM_THREADS="1")
        self.assertEqual((done.stdout, done.stderr), ("", ""))


@unittest.skipIf(importlib.util.find_spec("torch") is None, "no PyTorch: scripts/setup.sh full")
class OwnGroup(harness.Case):
    def test_a_process_group_that_is_a_python_class_works_as_without_the_observer(self):
        script = self.write(self.scratch(), "own_group.py", OWN_GROUP)
        for observe in "off", "on":
            done = self.ddprun("--standalone", f"--observe={observe}", sys.executable, script, code=0, OMP_NUM_THREADS="1")
            self.assertEqual((done.stdout, done.stderr), ("Group [1.0, 2.0, 3.0, 0.0] True\n", ""), observe)


@unittest.skipIf(importlib.util.find_spec("torch") is None, "no PyTorch: scripts/setup.sh full")
class Waits(Observed):
    SCRIPT = WAITS

    def test_the_collective_that_each_rank_began_last_stands_with_its_stack_and_in_a_hang(self):
        process = self.begin("--rdzv-id=job", "--hang-timeout=foreign=3s")
        number = int(self.await_line(process, "begun", stream="stdout").split()[-1])

        def last():
            shown = self.ddprunctl("stack", "job", f"--rdzv-endpoint=127.0.0.1:{self.port}", "--json", code=0)
            return [rank["lines"][0].partition("last collective ")[2] for rank in json.loads(shown.stdout)["ranks"]]

        harness.wait_until(lambda: last() == [f"all_reduce #{number + 2}", f"barrier #{number + 1}"], "both are told", 60)
        harness.wait_until(lambda: self.job().get("hang"), "the hang is reported", 60)
        self.assertIn(f"last collective barrier #{number + 1}", self.job()["hang"]["lines"][0])  # the rank that others wait for
        self.write(self.folder, "over", "")
        self.finish(process, timeout=60, code=0)


@unittest.skipIf(importlib.util.find_spec("torch") is None, "no PyTorch: scripts/setup.sh full")
class Fsdp(Observed):
    SCRIPT = FSDP

    def check_straggler(self, backend):
        process = self.begin(BACKEND=backend, DDPRUN_PROGRAM=harness.DDPRUN, PYTHONPATH=self.folder + ":" + os.path.join(harness.SOURCE, "python"))
        harness.wait_until(lambda: self.job().get("stragglers"), "the straggler is named", 60)
        job = self.job()
        self.write(self.folder, "over", "")
        self.finish(process, timeout=60, code=0)
        self.assertRegex("; ".join(job["stragglers"]), r"^rank 1 \([^;]*$")
        exposed = job["training"]["step_parts"]["exposed_seconds"]
        self.assertEqual(exposed["worst_rank"], 0)
        self.assertGreater(exposed["worst"], 0.04)  # rank 1's steps take 50 ms more

    def test_waits_for_collectives_that_python_calls_name_the_straggler_with_gloo(self):
        self.check_straggler("gloo")

    def test_waits_for_collectives_that_python_calls_name_the_straggler_with_ddprun_s_backend(self):
        self.check_straggler("ddprun")


@unittest.skipIf(importlib.util.find_spec("torch") is None, "no PyTorch: scripts/setup.sh full")
class Loaders(Observed):
    SCRIPT = LOADERS

    def test_the_samples_are_those_of_the_batches_that_the_steps_had(self):
        done = self.ddprun("--standalone", f"--events={self.folder}/events", sys.executable, self.script, code=0)
        with open(f"{self.folder}/events") as file:
            last = [event["ranks"][0]["samples"] for event in map(json.loads, file) if event["event"] == "progress"][-1]
        self.assertEqual(f"trained {last}\n", done.stdout)


class Watched(Observed):
    """A script whose rank 1 has its data late."""

    def check_rest(self):
        """Checks that the job shows its speed, its straggler, and the stack of each rank."""
        harness.wait_until(lambda: self.job().get("stragglers"), "the straggler is named", 90)
        job = self.job()
        self.assertRegex("; ".join(job["stragglers"]), r"^rank 1 \([^;]*$")
        parts = job["training"]["step_parts"]
        self.assertEqual(parts["ranks"], 2)
        self.assertGreater(parts["step_seconds"]["mean"], 0.08)  # rank 1 waits so long for a step's data
        self.assertLess(parts["step_seconds"]["mean"], 2)
        shown = self.ddprunctl("stack", job["run_id"], f"--rdzv-endpoint=127.0.0.1:{self.port}", "--json", code=0)
        self.assertEqual([bool(rank["lines"]) for rank in json.loads(shown.stdout)["ranks"]], [True, True])


class Logs:
    BATCH = None  # of a rank; None: no data loader

    def test_the_loss_that_a_framework_logs_is_seen_and_where_it_is_no_number(self):
        process = self.begin(HF_HUB_OFFLINE="1")
        harness.wait_until(lambda: self.training().get("loss") == 2.5, "the loss is shown", 120)
        seen = self.training()
        self.assertEqual(seen["nan_ranks"], 0)
        self.check_rest()
        seen = self.training()
        if self.BATCH is None:
            self.assertIsNone(seen["samples_per_second"])
        else:
            self.assertAlmostEqual(seen["samples_per_second"] * seen["step_parts"]["step_seconds"]["mean"] / (2 * self.BATCH), 1, delta=0.3)
        self.write(self.folder, "nan", "")
        harness.wait_until(lambda: self.training().get("nan_ranks") == 2, "it is said that there is no loss", 30)
        self.write(self.folder, "over", "")
        self.finish(process, timeout=60, code=0)


@unittest.skipIf(importlib.util.find_spec("torch") is None, "no PyTorch: scripts/setup.sh full")
class Gpt(Watched):
    SCRIPT = GPT

    @unittest.skipIf(shutil.which("py-spy", path=PATH) is None, "no py-spy: scripts/setup.sh full")
    def test_a_real_py_spy_names_the_functions_of_the_script_in_which_the_ranks_are(self):
        process = self.begin("--rdzv-id=job", PATH=PATH)
        harness.wait_until(lambda: self.training().get("step", 0) > 0, "it trains", 60)

        def is_in(rank, function):
            shown = self.ddprunctl("stack", "job", str(rank), f"--rdzv-endpoint=127.0.0.1:{self.port}", "--json", code=0)
            lines = json.loads(shown.stdout)["ranks"][0]["lines"]
            return any(re.fullmatch(r"python %s \(train\.py:\d+\)" % function, line) for line in lines)

        harness.wait_until(lambda: is_in(1, "get_batch"), "rank 1 is where its data come late", 30)
        harness.wait_until(lambda: is_in(0, "<module>"), "rank 0 is in the loop", 30)
        self.write(self.folder, "over", "")
        self.finish(process, timeout=60, code=0)

    def test_a_loop_without_a_framework_shows_its_speed_its_straggler_and_stacks(self):
        process = self.begin()
        self.check_rest()
        self.write(self.folder, "over", "")
        self.finish(process, timeout=60, code=0)


@unittest.skipIf(importlib.util.find_spec("wandb") is None, "no Weights & Biases: scripts/setup.sh full")
class Boards(Logs, Observed):
    SCRIPT = BOARDS


@unittest.skipIf(importlib.util.find_spec("lightning") is None, "no Lightning: scripts/setup.sh full")
class Lightning(Logs, Watched):
    SCRIPT, BATCH = LIGHTNING, 2


@unittest.skipIf(importlib.util.find_spec("transformers") is None, "no Transformers: scripts/setup.sh full")
class Trainer(Logs, Watched):
    SCRIPT, BATCH = TRAINER, 4


# Tests the observer's rules with a clock of the test's own.
class Steps(unittest.TestCase):
    def setUp(self):
        path = os.path.join(harness.SOURCE, "agent/observe/sitecustomize.py")
        spec = importlib.util.spec_from_file_location("observer", path)
        self.observer = importlib.util.module_from_spec(spec)
        before = list(sys.meta_path)
        spec.loader.exec_module(self.observer)
        sys.meta_path[:] = before
        self.now = 0
        self.agent = lambda: [0] * 512
        self.steps = self.observer._Steps(lambda: self.now, lambda: self.agent())

    def step(self, ns, optimizer="a", loader_ns=0):
        self.now += ns
        self.steps.loader_ns += loader_ns
        self.steps._after_step(optimizer)

    def loss(self):
        return struct.unpack("d", struct.pack("Q", self.steps.words[self.observer._LOSS]))[0]

    def seen(self):
        """Returns [steps, timed steps, their time, the loader's time]."""
        words = self.steps.words
        self.assertEqual(words[self.observer._BEGUN], words[self.observer._TIMED])
        return [words[at] for at in (self.observer._STEP, self.observer._TIMED, self.observer._STEP_NS,
                                     self.observer._LOADER_NS)]

    def test_the_first_step_has_no_beginning_and_a_pause_is_no_step(self):
        for _ in range(4):
            self.step(100, loader_ns=30)
        self.assertEqual(self.seen(), [4, 3, 300, 90])
        self.step(1000, loader_ns=900)  # an evaluation came between
        self.assertEqual(self.seen(), [5, 3, 300, 90])
        self.step(100)
        self.assertEqual(self.seen(), [6, 4, 400, 90])

    def test_steps_that_stay_slow_are_believed(self):
        for _ in range(4):
            self.step(100)
        for _ in range(8):
            self.step(10_000)
        steps, timed, ns, _ = self.seen()
        self.assertEqual((steps, (ns - 300) // (timed - 3)), (12, 10_000))

    def test_one_long_first_step_does_not_hide_a_pause(self):
        self.step(100)
        self.step(60_000)
        for _ in range(5):
            self.step(100)
        self.step(10_000)
        self.assertEqual(self.seen()[:3], [8, 6, 60_500])

    def test_an_optimizer_for_each_parameter_makes_no_more_steps(self):
        for _ in range(50):
            for optimizer in range(200):
                self.step(1, optimizer)
        self.assertEqual(self.seen()[:3], [50, 49, 49 * 200])

    def test_an_agent_that_stands_still_is_asked_again_later(self):
        def silent():
            raise TimeoutError("timed out")
        self.agent = silent
        self.step(100)
        self.step(100)
        self.assertIsNone(self.steps.words)
        self.agent = lambda: [0] * 512
        self.step(61 * 10**9)
        self.step(100)
        self.assertEqual(self.seen()[0], 4)

    def test_a_module_of_another_import_hook_is_watched_as_well(self):
        class Own:
            __slots__ = ("done",)

            def create_module(self, spec):
                return None

            def exec_module(self, module):
                module.is_there = True

        class Hook:
            def find_spec(self, name, path=None, target=None):
                return importlib.util.spec_from_loader(name, Own()) if name == "watched_module" else None

        watched, failed = [], []
        before = list(sys.meta_path)
        sys.meta_path[:0] = [self.observer._Finder({"watched_module": watched.append}, failed.append), Hook()]
        try:
            import watched_module
        finally:
            sys.meta_path[:] = before
        self.assertEqual((watched, failed, watched_module.is_there), ([watched_module], [], True))
        self.assertIsInstance(watched_module.__loader__, Own)
        self.assertIsInstance(watched_module.__spec__.loader, Own)

    def test_the_training_s_loss_is_chosen_among_what_is_logged(self):
        for names, loss in ((["val_loss", "Train/Loss"], "Train/Loss"), (["aux_loss", "train_loss", "loss"], "loss"), (["test_loss", "rate"], None),
                            (["aux_loss", "train_loss_step"], "train_loss_step"), ([7], None)):
            self.assertEqual(self.observer._loss_name(names), loss, names)

    def test_a_board_s_loss_is_the_best_named_one_and_a_framework_s_comes_before(self):
        self.step(100)
        for metrics, loss in (({"loss_aux": 1}, 1), ({"loss_aux": 2, "rate": 3}, 2), ({"loss/train": 4}, 4), ({"loss_aux": 5}, 4), ({"loss/val": 6}, 4),
                              ({"loss/train": {"a": 7}}, 4)):
            self.steps._board_has_logged(metrics)
            self.assertEqual(self.loss(), loss, metrics)
        self.steps._framework_has_logged({"rate": 1})
        self.steps._board_has_logged({"loss/train": 8})
        self.assertEqual(self.loss(), 4)

    @unittest.skipIf(importlib.util.find_spec("torch") is None, "no PyTorch: scripts/setup.sh full")
    def test_a_loss_that_has_a_gradient_brings_no_warning(self):
        import torch
        self.step(100)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            self.steps._board_has_logged({"loss": torch.tensor(2.5, requires_grad=True)})
        self.assertEqual(self.loss(), 2.5)

    def test_a_part_that_fails_is_one_line_and_the_others_go_on(self):
        class Watched:
            def method(self):
                return 7

        seen = []

        def then(*_):
            seen.append(1)
            raise ValueError("unknown")

        def fails(_now):
            raise KeyError("gone")

        self.steps.call_after(Watched, "method", "losses", then)
        self.steps.looks["readings of GPU memory"] = fails
        with contextlib.redirect_stderr(io.StringIO()) as said:
            self.assertEqual((Watched().method(), Watched().method()), (7, 7))
            self.steps.try_to(fails, "skipped steps")(None)
            for _ in range(30):
                self.step(100)
        self.assertEqual(said.getvalue(), "ddprun: this worker's losses are not observed: ValueError: unknown\n"
                         "ddprun: this worker's skipped steps are not observed: KeyError: 'gone'\n"
                         "ddprun: this worker's readings of GPU memory are not observed: KeyError: 'gone'\n")
        self.assertEqual((seen, self.seen()[0]), ([1], 30))

    def test_collectives_without_a_number_cost_one_line(self):
        class ProcessGroup:
            def _get_sequence_number_for_group(self):
                raise RuntimeError("no such number")

            def allreduce(self, tensors):
                return tensors

        group = ProcessGroup()
        self.step(100)
        self.steps.watch_collectives(types.SimpleNamespace(ProcessGroup=ProcessGroup, _world=types.SimpleNamespace(default_pg=group)))
        with contextlib.redirect_stderr(io.StringIO()) as said:
            self.assertEqual([group.allreduce(7), group.allreduce(tensors=8)], [7, 8])
            self.step(100)
        self.assertEqual(said.getvalue(), "ddprun: this worker's collectives are not observed: RuntimeError: no such number\n")
        self.assertEqual(self.seen()[0], 2)

    def test_a_call_of_a_python_class_is_seen_where_it_calls_a_group_of_pytorch_s(self):
        class ProcessGroup:
            def _get_sequence_number_for_group(self):
                return 6

            def broadcast(self, tensors):
                return tensors

            allreduce = broadcast

        class Own(ProcessGroup):
            def allreduce(self, tensors):
                return group.allreduce(tensors)

        group, words = ProcessGroup(), [self.observer._NAME, self.observer._COLLECTIVES]
        self.step(100)
        self.steps.watch_collectives(types.SimpleNamespace(ProcessGroup=ProcessGroup, _world=types.SimpleNamespace(default_pg=group)))
        self.assertEqual((Own().broadcast(7), [self.steps.words[at] for at in words]), (7, [0, 0]))
        self.assertEqual((Own().allreduce(8), [self.steps.words[at] for at in words]), (8, [int.from_bytes(b"all_redu", "little"), 7]))

    def test_collectives_of_pytorch_s_own_are_counted_at_the_step_s_end(self):
        group = types.SimpleNamespace(_get_sequence_number_for_group=lambda: 5)
        self.steps.watch_collectives(types.SimpleNamespace(ProcessGroup=type("ProcessGroup", (), {}), _world=types.SimpleNamespace(default_pg=group)))
        self.step(100)
        name, end, number = (self.steps.words[at] for at in (self.observer._NAME, self.observer._NAME_END, self.observer._COLLECTIVES))
        self.assertEqual((struct.pack("<QQ", name, end).rstrip(b"\0"), number), (b"collective", 5))

    def test_an_error_of_the_program_s_signal_handler_reaches_the_program(self):
        class Watched:
            def method(self):
                return 7

        def raise_error(*_):
            raise error

        def is_interrupted(*_):
            signal.raise_signal(signal.SIGUSR1)

        self.addCleanup(signal.signal, signal.SIGUSR1, signal.signal(signal.SIGUSR1, raise_error))
        self.steps.call_after(Watched, "method", "losses", is_interrupted)
        met, self.agent = self.agent, is_interrupted
        for error in ValueError("preempted"), TimeoutError("of an alarm"):
            for call in (lambda: self.steps.after_step("a", (), {})), Watched().method, (lambda: self.steps.try_to(is_interrupted, "losses")(None)):
                with self.assertRaises(type(error)) as raised:
                    call()
                self.assertIs(raised.exception, error)
        self.agent = met
        self.steps.after_step("a", (), {})
        self.assertEqual(self.seen()[0], 3)

    def test_a_failure_that_can_not_be_said_is_not_the_program_s(self):
        closed = io.StringIO()
        closed.close()
        for stderr in closed, None:
            with unittest.mock.patch.object(sys, "stderr", stderr), contextlib.redirect_stdout(io.StringIO()) as said:
                self.steps.turn_off(ValueError("unknown"))
            self.assertEqual((self.steps.is_off, said.getvalue()), (True, ""))
            self.steps.is_off = False

    def test_a_framework_that_can_not_be_told_costs_that_alone(self):
        with unittest.mock.patch.dict(sys.modules, {"torch": types.ModuleType("torch")}), \
                contextlib.redirect_stderr(io.StringIO()) as said:
            self.assertEqual(self.observer._framework_or_none(), {})
        self.assertRegex(said.getvalue(), r"^ddprun: this worker's names of framework and backend are not observed: AttributeError: [^\n]*\n$")

    def test_a_gpu_that_the_program_has_not_initialised_is_not_asked(self):
        cuda = types.SimpleNamespace(is_initialized=lambda: False, max_memory_allocated=lambda: self.fail("it was asked"))
        with unittest.mock.patch.dict(sys.modules, {"torch.cuda": cuda}):
            for _ in range(10):
                self.step(100)
            self.assertIn("readings of GPU memory", self.steps.looks)
            cuda.is_initialized, cuda.max_memory_allocated = lambda: True, lambda: 4096
            for _ in range(10):
                self.step(100)
        self.assertEqual(self.steps.words[self.observer._GPU_PEAK], 4096)

    def test_threads_of_gloo_are_awaited_until_they_sleep_or_half_a_second_is_over(self):
        for states, left in (("RSRSSR", 1), ("SSSSSS", 3), ("RRRRRRRR", 3), ("", 0)):  # a look takes 0.1 s
            looks, clock = iter(states), itertools.count(0, 10**8)
            with unittest.mock.patch.dict(sys.modules, {"torch.distributed": types.ModuleType("torch.distributed")}), \
                    unittest.mock.patch.multiple(self.observer, _gloo_states=lambda: [each.encode() for each in itertools.islice(looks, 1)],  # noqa: B023
                                                 monotonic_ns=lambda: next(clock)):  # noqa: B023
                self.observer._await_gloo()
            self.assertEqual(len(list(looks)), left, states)

    def test_a_wait_for_a_collective_counts_in_its_step_and_another_thread_s_nowhere(self):
        class Work:
            def wait(work, ns):
                self.now += ns
                return ns

        def waited():
            return [self.steps.words[at] for at in self.observer._PARTS[2:4]]

        self.steps.watch_waits(types.SimpleNamespace(Work=Work))
        self.step(100)
        self.assertEqual(Work().wait(70), 70)
        thread = threading.Thread(target=Work().wait, args=(20,))
        thread.start()
        thread.join()
        self.step(10)
        self.assertEqual((self.seen()[2], waited()), (100, [70, 70]))
        self.step(100)
        self.assertEqual(waited(), [70, 70])

    def test_a_wait_for_a_gpu_that_no_call_makes_is_not_timed(self):
        class Work:
            def wait(work):
                return 7

        plain = Work.wait
        with unittest.mock.patch.dict(sys.modules, {"torch.cuda": types.SimpleNamespace(is_initialized=lambda: True)}):
            self.steps.watch_waits(types.SimpleNamespace(Work=Work))
            self.step(100)
        self.assertIs(Work.wait, plain)

    def test_a_child_of_the_worker_is_not_seen(self):
        self.step(100)
        self.steps.turn_off()  # in the child, by os.register_at_fork()
        self.steps.after_step(object(), (), {})
        self.assertEqual(self.seen()[0], 1)

    def test_the_steps_of_one_optimizer_count_until_it_is_used_no_more(self):
        self.step(100)
        for _ in range(10):
            self.step(50, "a")
            self.step(50, "b")
        self.assertEqual(self.seen()[0], 11)
        for _ in range(100):
            self.step(100, "b")
        self.assertEqual(self.seen()[0], 11 + 38)  # from b's 64th since a's last


if __name__ == "__main__":
    harness.main()
