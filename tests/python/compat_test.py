#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tests ddprun.compat: the real Accelerate and Lightning start their workers by ddprun; a notebook does, too."""
import importlib.util
import os
import subprocess
import sys
import unittest

SOURCE = os.environ.get("DDPRUN_SOURCE_DIR") or os.path.join(os.path.dirname(__file__), "../..")
sys.path.insert(0, os.path.join(SOURCE, "tests/support"))
import files  # noqa: E402
import package  # noqa: E402
import runner  # noqa: E402

SCRIPTS = os.path.dirname(sys.executable)
# A worker's script. DDPRUN_ROUND is set if ddprun has started the worker.
SUM = """
import os, torch
def total(reduce):
    value = reduce(torch.ones(1))
    print("sum %d under ddprun: %s" % (value.item(), "DDPRUN_ROUND" in os.environ), flush=True)
"""
ACCELERATE = SUM + """
from accelerate import Accelerator
accelerator = Accelerator(cpu=True)
total(lambda one: accelerator.reduce(one, "sum"))
torch.distributed.destroy_process_group()
os._exit(0)  # PyTorch 2.15 aborts an exit in which one of gloo's threads drops a tensor
"""
FABRIC = SUM + """
from lightning.fabric import Fabric
fabric = Fabric()  # `fabric run` has said how many, and where
total(lambda one: fabric.all_reduce(one, reduce_op="sum"))
torch.distributed.destroy_process_group()
os._exit(0)  # PyTorch 2.15 aborts an exit in which one of gloo's threads drops a tensor
"""
NOTEBOOK_LAUNCHER = """
from ddprun import compat
compat.install()
def train(start):
    import os, torch.distributed as dist
    dist.init_process_group("gloo")
    print("rank", dist.get_rank(), "under ddprun:", "DDPRUN_ROUND" in os.environ, flush=True)
    dist.destroy_process_group()
    if start > 1:
        raise ValueError("more than one")
from accelerate import notebook_launcher
notebook_launcher(train, (1,), num_processes=2, use_port="0")
"""


@unittest.skipUnless(all(importlib.util.find_spec(name) for name in ("torch", "accelerate", "lightning", "nbclient")),
                     "no PyTorch, Accelerate, Lightning or nbclient (scripts/setup.sh full)")
class Compat(unittest.TestCase):
    def setUp(self):
        self.folder = files.scratch(self)
        self.environment = package.environment(PATH=SCRIPTS + ":" + os.environ["PATH"], HOME=self.folder, CUDA_VISIBLE_DEVICES="",
                                               ACCELERATE_USE_CPU="true")

    def run_command(self, *command, status=0, **more):
        done = subprocess.run(command, cwd=self.folder, env={**self.environment, **more}, text=True, timeout=100,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        print(done.stdout)
        self.assertEqual(done.returncode, status)
        return done.stdout

    def write(self, name, text):
        files.write(self.folder, name, text)

    def test_accelerate_launch(self):
        self.write("a.py", ACCELERATE)
        self.write("b.py", "import sys; sys.exit(7)")
        launch = [sys.executable, "-m", "ddprun.compat", "accelerate", "launch", "--multi_gpu", "--num_processes=2",
                  "--num_machines=1", "--mixed_precision=no", "--dynamo_backend=no"]
        self.assertEqual(self.run_command(*launch, "a.py").count("sum 2 under ddprun: True"), 2)
        self.assertIn("FAILED", self.run_command(*launch, "b.py", status=7))

    def test_torchruns_own_words_count(self):
        self.write("a.py", "import os; print('one', 'DDPRUN_ROUND' in os.environ)")
        for command in (["torchrun"], ["python", "-m", "torch.distributed.run"]):
            compat = [sys.executable, "-m", "ddprun.compat"] if command == ["torchrun"] else []
            said = self.run_command(*compat, *command, "--standalone", "--nproc-per-node=1", "--duplicate-stdout-filters=x,y",
                                    "a.py", DDPRUN_NPROC_PER_NODE="3")
            self.assertEqual(said.count("one"), 1)
            self.assertEqual(said.count("one True"), 1 if compat else 0)

    def test_fabric_run(self):
        self.write("a.py", FABRIC)
        said = self.run_command(sys.executable, "-m", "ddprun.compat", "fabric", "run", "--accelerator=cpu", "--devices=2",
                                "--strategy=ddp", "a.py")
        self.assertEqual(said.count("sum 2 under ddprun: True"), 2)

    def test_a_notebook_with_notebook_launcher_and_launch(self):
        import nbclient
        import nbformat
        cells = [NOTEBOOK_LAUNCHER,
                 "import ddprun\nprint(ddprun.launch(lambda x: x + 1, 41, nproc_per_node=2))",
                 "def fails():\n    raise KeyError('x')\n"
                 "try:\n    ddprun.launch(fails, nproc_per_node=1)\n"
                 "except ddprun.WorkerError as error:\n    print('rank', error.rank, repr(error.__cause__))"]
        notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])
        for name in set(os.environ) - set(self.environment):
            del os.environ[name]
        os.environ.update(self.environment)
        nbclient.NotebookClient(notebook, timeout=100, resources={"metadata": {"path": self.folder}}).execute()
        shown = ["".join(output.get("text", "") for output in cell.outputs) for cell in notebook.cells]
        print("\n---\n".join(shown))
        for rank in (0, 1):
            self.assertIn("rank %d under ddprun: True" % rank, shown[0])
        self.assertIn("[42, 42]", shown[1])
        self.assertIn("rank 0 KeyError('x')", shown[2])


if __name__ == "__main__":
    runner.main()
