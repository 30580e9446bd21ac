#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tests PyTorch's DDP, over a crash, in workers that are forked from a Python with its modules (docs/warm.md)."""
import importlib.util
import json
import os
import subprocess
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


# Each rank prints what must differ from its peers'.
RANDOM = r'''
import sys
was_there = "torch" in sys.modules
import tempfile, numpy, torch
print(was_there, torch.rand(1).item(), numpy.random.rand(), tempfile.mktemp(), flush=True)
'''
# Multiplies with the number of threads that numpy's library has, or with that of $SETS. Prints the threads of the process.
THREADS = r'''
import os, sys
was_there = "numpy" in sys.modules
if "SETS" in os.environ:
    os.environ[os.environ["SETS"]] = "3"
import numpy
a = numpy.ones((1500, 1500))
print(was_there, (a @ a)[0, 0], len(os.listdir("/proc/self/task")), flush=True)
'''
# Computes with OpenMP's threads. Prints the sum and how many threads there are then.
POOL = r'''
import os, sys
was_there = "torch" in sys.modules
import torch
before = len(os.listdir("/proc/self/task"))
total = torch.arange(1 << 21, dtype=torch.float64).sum().item()
print(was_there, total, len(os.listdir("/proc/self/task")) - before, flush=True)
'''
# Makes a step. Prints whether it began warm, and whether its imports are noted before and after the step.
STEPS = r'''
import os, sys
def is_noted():
    return any(type(each).__name__ == "Watch" for each in sys.meta_path)
was_there = "torch.optim.optimizer" in sys.modules
import torch
before, optimizer = is_noted(), torch.optim.SGD([torch.zeros(1, requires_grad=True)])
optimizer.step()
print(was_there, before, is_noted(), flush=True)
while not any(name.endswith(".json") for name in os.listdir(sys.argv[1])):
    pass
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

    def test_a_worker_s_imports_are_noted_until_its_first_step(self):
        """The second job's worker begins warm."""
        path, cache = self.write(self.scratch(), "steps.py", STEPS), self.scratch()
        for warm in ("False", "True"):
            done = self.ddprun("--standalone", "--preload=auto", f"--preload-cache={cache}", "--no-python", sys.executable, "-u", path, cache, code=0)
            self.assertEqual(done.stdout, f"{warm} True False\n", done.text)

    def shown(self, script, *flags, **more):
        """Runs a script. Returns the words of each line that it prints."""
        path = self.write(self.scratch(), "script.py", script)
        done = self.ddprun("--standalone", *flags, "--no-python", sys.executable, "-u", path, code=0, **more)
        self.assertNotIn("--preload:", done.stderr)
        return [line.split("] ")[-1].split() for line in done.stdout.splitlines()]

    def test_random_numbers_and_temporary_names_differ(self):
        ranks = self.shown(RANDOM, "--nproc-per-node=3", "--preload=numpy.random,tempfile,torch")
        was_there, *others = map(set, zip(*ranks))
        self.assertEqual((was_there, [len(each) for each in others]), ({"True"}, [3, 3, 3]), ranks)

    def test_a_library_with_a_pool_of_threads_leaves_workers_warm(self):
        """One worker has no OMP_NUM_THREADS, so that the library makes a thread for each CPU when it is loaded."""
        (was_there, product, threads), = self.shown(THREADS, "--nproc-per-node=1", "--preload=numpy")
        self.assertEqual((was_there, product, threads), ("True", "1500.0", str(min(64, len(os.sched_getaffinity(0))))))  # 64: what NumPy's OpenBLAS has at most

    def test_openmp_s_threads_compute_in_a_warm_worker(self):
        warm, cold = (self.shown(POOL, "--nproc-per-node=1", *flags, OMP_NUM_THREADS="2") for flags in (["--preload=torch"], []))
        self.assertEqual((warm, cold), tuple([[there, str(float(sum(range(1 << 21)))), "1"]] for there in ("True", "False")))

    def test_openmp_s_threads_that_an_import_has_begun_refuse_the_fork(self):
        """A worker's computation would wait for them for ever."""
        folder = self.scratch()
        self.write(folder, "computes.py", "import torch\ntotal = torch.arange(1 << 21).sum()\n")
        path = self.write(folder, "script.py", POOL)
        done = self.ddprun("--standalone", "--nproc-per-node=1", "--preload=computes", "--no-python", sys.executable, path, code=0,
                           PYTHONPATH=folder, OMP_NUM_THREADS="2")
        self.assertIn("an imported module has threads (1: ", done.stderr)
        self.assertTrue(done.stdout.startswith(f"False {float(sum(range(1 << 21)))} "), done.text)

    def test_coverage_measures_the_lines_of_a_warm_worker(self):
        """It is started by the script, and as the program that runs the script."""
        if not importlib.util.find_spec("coverage"):
            self.skipTest("coverage is not installed: scripts/setup.sh full")
        folder = self.scratch()
        data = os.path.join(folder, "data")
        measured = "def f(x):\n    if x:\n        return 1\n    return 2\n"
        starts = f"import coverage\nmeasure = coverage.Coverage(data_file={data!r})\nmeasure.start()\nf(0)\nmeasure.stop()\nmeasure.save()\n"
        for script, command, lines in ((measured + starts, (), {2, 4}), (measured + "f(0)\n", ("-m", "coverage", "run", f"--data-file={data}"), {1, 2, 4})):
            path = self.write(folder, "script.py", script + "import sys\nprint('colorsys' in sys.modules)\n")
            done = self.ddprun("--standalone", "--nproc-per-node=1", "--preload=colorsys", "--no-python", sys.executable, *command, path, code=0)
            self.assertEqual(done.stdout, "True\n", done.text)
            report = [sys.executable, "-m", "coverage", "json", f"--data-file={data}", "-o", "-", "--quiet"]
            files = json.loads(subprocess.run(report, check=True, stdout=subprocess.PIPE, timeout=60).stdout)["files"]
            self.assertEqual({*files[path]["executed_lines"]} & {1, 2, 3, 4}, lines)  # those of the function
            os.remove(data)

    def test_a_module_s_thread_is_not_taken_for_one_of_a_pool_that_has_ended(self):
        folder = self.scratch()
        self.write(folder, "has_thread.py", "import os, threading, numpy\npid = os.fork()\nif pid == 0:\n    os._exit(0)\nos.waitpid(pid, 0)\n"
                                            "threading.Thread(target=threading.Event().wait, name='mine', daemon=True).start()\n")
        path = self.write(folder, "script.py", "print('it ran')\n")
        done = self.ddprun("--standalone", "--nproc-per-node=1", "--preload=has_thread", "--no-python", sys.executable, path, code=0, PYTHONPATH=folder)
        self.assertIn("an imported module has threads (1: mine), which do not survive a fork", done.stderr)

    def test_a_module_s_thread_that_wants_python_s_lock_does_not_hold_the_helper_up(self):
        """It wants the lock also while the helper forks, to end numpy's threads."""
        folder = self.scratch()
        path = self.write(folder, "script.py", "print('it ran')\n")
        spins = "import _thread, sys, threading, numpy\nsys.setswitchinterval(1e-6)\ndef spin():\n    while True:\n        pass\n"
        for start, name in (("_thread.start_new_thread(spin, ())\n", "python"),
                            ("threading.Thread(target=spin, name='mine', daemon=True).start()\n", "mine")):
            self.write(folder, "spins.py", spins + start)
            done = self.ddprun("--standalone", "--nproc-per-node=1", "--preload=spins", "--preload-timeout=20", "--no-python", sys.executable, path,
                               code=0, PYTHONPATH=folder)
            self.assertIn(f"an imported module has threads (1: {name}", done.stderr)

    def test_a_number_of_threads_that_the_script_sets_before_its_import_takes_effect(self):
        for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
            (was_there, _, threads), = self.shown(THREADS, "--nproc-per-node=1", "--preload=numpy", SETS=name, OMP_NUM_THREADS="1")
            self.assertEqual((was_there, threads), ("True", "3"), name)
        script = ("import os, sys\nwas_there = 'torch' in sys.modules\nos.environ[{!r}] = '1'\nimport torch\n"
                  "print(was_there, torch.get_num_threads(), flush=True)\n")
        for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS"):
            warm, cold = (self.shown(script.format(name), *flags) for flags in (["--preload=torch"], []))
            self.assertEqual((warm, cold), ([["True", "1"]], [["False", "1"]]), name)

    def test_a_number_of_threads_that_the_script_gave_torch_stays_when_another_library_s_is_set(self):
        script = ("import os, sys\nwas_there = 'torch' in sys.modules\nimport torch\ntorch.set_num_threads(3)\n"
                  "os.environ['OPENBLAS_NUM_THREADS'] = '1'\nprint(was_there, torch.get_num_threads(), flush=True)\n")
        self.assertEqual(self.shown(script, "--preload=torch", OMP_NUM_THREADS="1"), [["True", "3"]])

    def test_a_library_whose_file_was_removed_does_not_fail_a_variable_of_threads(self):
        folder = self.scratch()
        self.write(folder, "openblas.so", "no library, but the process maps it as one\n")
        self.write(folder, "maps.py", "import mmap, numpy\nwith open(__file__.replace('maps.py', 'openblas.so'), 'rb') as file:\n"
                                      "    memory = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)\n")
        script = ("import os, sys\nimport maps\nos.remove(maps.__file__.replace('maps.py', 'openblas.so'))\n"
                  "os.environ['OPENBLAS_NUM_THREADS'] = '1'\nprint('numpy' in sys.modules, flush=True)\n")
        self.assertEqual(self.shown(script, "--preload=numpy", PYTHONPATH=folder), [["True"]])


if __name__ == "__main__":
    harness.runner.main()
