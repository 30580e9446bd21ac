#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tests scripts/gpu_check.sh and its steps without a GPU: nvidia-smi is missing, or is a script of this test."""
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import unittest
from unittest import mock

SOURCE = os.environ.get("DDPRUN_SOURCE_DIR", os.path.abspath(__file__ + "/../../.."))
sys.path[:0] = [os.path.join(SOURCE, "tests/support"), os.path.join(SOURCE, "scripts"), os.path.join(SOURCE, "bench")]
import gpu_rows  # noqa: E402
import gpu_steps  # noqa: E402
import runner  # noqa: E402


class GpuCheck(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name
        self.tools = os.path.join(folder.name, "tools")
        os.mkdir(self.tools)
        for name in ("bash", "cat", "cut", "dirname", "env", "mktemp", "rm", "sed", "sh", "timeout", "wc"):
            os.symlink(shutil.which(name), os.path.join(self.tools, name))
        os.symlink(sys.executable, os.path.join(self.tools, "python3"))

    def run_script(self, name, *arguments):
        environment = {"PATH": self.tools, "OUT": self.folder}
        done = subprocess.run([os.path.join(SOURCE, "scripts", name), *arguments], env=environment, text=True, timeout=120,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)
        return done.returncode, done.stdout

    def check(self, *arguments):
        return self.run_script("gpu_check.sh", *arguments)

    def with_a_card(self):
        with open(os.path.join(self.tools, "nvidia-smi"), "w", encoding="utf-8") as f:
            f.write("#!/bin/sh\necho a card, 580.1\n")
        os.chmod(f.name, 0o755)

    def test_a_machine_without_a_gpu_is_77(self):
        for arguments in (["--carried", ".gpu", "--deadline", "60", "look"], ["--no-setup"]):
            self.assertEqual(self.check(*arguments), (77, "gpu_check: SKIPPED: no GPU: no NVIDIA driver on this machine (nvidia-smi not found)\n"))

    def test_an_unknown_argument_is_one_line_and_2(self):
        self.assertEqual(self.check("everything"), (2, "gpu_check: unknown argument 'everything' (--help)\n"))

    def test_a_folder_without_a_pack_is_told_what_makes_one(self):
        self.with_a_card()
        status, text = self.check("--carried", self.folder)
        self.assertEqual(status, 1, text)
        self.assertIn(f"gpu_check: FAILED: {self.folder} holds no pack (scripts/gpu_pack.sh makes one)", text)

    def test_a_pack_without_a_wheel_is_one_line_and_2(self):
        needed = "--torch DIR is needed: the `torch` folder of the wheel that the GPU machine has (--help)"
        for arguments, line in (((), needed), (("--torch",), needed), (("--trch=x",), "unknown argument '--trch=x' (--help)"),
                                (("--torch", self.folder), f"--torch {self.folder}: there is no version.py, so it is no `torch` folder of a wheel")):
            self.assertEqual(self.run_script("gpu_pack.sh", *arguments), (2, f"gpu_pack: {line}\n"))

    def test_a_pack_for_another_pytorch_is_refused_by_name(self):
        self.with_a_card()
        packed, installed = os.path.join(self.folder, "packed"), os.path.join(self.folder, "installed")
        for folder, name, text in ((packed, "torch_version", "2.11.0+cu130\n"), (packed, "commit", "12345678\n"),
                                   (os.path.join(installed, "torch"), "version.py", "__version__ = '2.15.0'\n"),
                                   (os.path.join(installed, "torch"), "__init__.py", "")):
            os.makedirs(folder, exist_ok=True)
            with open(os.path.join(folder, name), "w", encoding="utf-8") as f:
                f.write(text)
        with tarfile.open(os.path.join(self.folder, "pack.tar.xz"), "w:xz") as pack:
            pack.add(packed, ".")
        os.remove(os.path.join(self.tools, "python3"))
        with open(os.path.join(self.tools, "python3"), "w", encoding="utf-8") as f:
            f.write(f"#!/bin/sh\nPYTHONPATH={installed} exec {sys.executable} \"$@\"\n")
        os.chmod(f.name, 0o755)
        status, text = self.check("--carried", self.folder)
        self.assertEqual(status, 1, text)
        self.assertIn("gpu_check: FAILED: the pack is for PyTorch 2.11.0+cu130; python3 has 2.15.0\n", text)

    def test_results_become_rows_with_date_and_card(self):
        document = os.path.join(self.folder, "benchmarks.md")
        shutil.copy(gpu_rows.run.DOCUMENT, document)
        found = {"date": "2030-01-02", "cards": ["Some Card"], "driver": "600.1", "cores": 4, "steps": [
            {"name": "look.torch", "outcome": "ok", "figures": [{"torch": "2.99", "nccl": "2.40.0", "gpus": 1}]},
            {"name": "step.mlp_ours_1", "outcome": "ok", "figures": [{"step_ms": 1.25}]},
            {"name": "step.mlp_torch_1", "outcome": "ok", "figures": [{"step_ms": 2.5}]},
            {"name": "one.bandwidth", "outcome": "ok", "figures": [
                {"bytes": 8, "op": "sum", "ranks": 2, "ours_us": 9, "nccl_us": 8}, {"bytes": 1 << 28, "op": "average", "ranks": 2, "ours_us": 70, "nccl_us": 77}]},
            {"name": "one.train", "outcome": "ok", "figures": [{"test_accuracy": 0.9, "data_share": 0.034}]},
            {"name": "one.train_bf16_loader", "outcome": "ok", "figures": [{"test_accuracy": 0.9}]},
            {"name": "one.graph", "outcome": "ok", "figures": [{"all_reduces": 16, "bytes": 16384, "eager_us": 300, "replayed_us": 150}]},
            {"name": "step.resnet18_ours_1", "outcome": "status 1", "figures": [{"step_ms": 77.125}]}]}
        with open(os.path.join(self.folder, "results.json"), "w", encoding="utf-8") as f:
            json.dump(found, f)
        with mock.patch.object(gpu_rows.run, "DOCUMENT", document):
            gpu_rows.main(f.name)
        with open(document, encoding="utf-8") as f:
            text = f.read()
        mark = re.search(r"^\| (M\d+) \| 1 × Some Card, driver 600\.1, 4 cores, PyTorch 2\.99, NCCL 2\.40\.0 \|$", text, re.M)[1]
        row = text.partition("<!--begin:gpu-step-->")[2].partition("<!--end:gpu-step-->")[0]
        self.assertIn("| MLP of 25 MiB (ms) | 1.25 (1.25–1.25) | 2.5 (2 ×) | ≤ 0.75 × PyTorch: reached |", row)
        self.assertIn(f"\n2030-01-02, {mark}.\n", row)
        for line in ("| 8 B, sum, 2 GPUs (µs) | 9 (9–9) | 8 (0.889 ×) |", "| 256 MiB, average, 2 GPUs (µs) | 70 (70–70) | 77 (1.1 ×) |",
                     "| float32 (%) | 3.4 (3.4–3.4) | ≤ 5: reached |", "| 16 all-reduces of 16 KiB (µs) | 150 (150–150) | 300 (2 ×) |"):
            self.assertIn(line, text)
        self.assertNotIn("77.1", row)  # a step that failed has no figure
        adamw = text.partition("<!--begin:gpu-adamw-->")[2].partition("<!--end:gpu-adamw-->")[0]
        self.assertNotIn("2030-01-02", adamw)  # not measured in that run, so the row stays

    def outcomes(self, *steps, deadline=60):
        machine = gpu_steps.Machine(self.folder, ["a card, 580.1"])
        run = gpu_steps.Run(machine, self.folder, deadline)
        for step in steps:
            run.step(step)
        with open(os.path.join(self.folder, "results.json"), encoding="utf-8") as f:
            return {each["name"]: each for each in json.load(f)["steps"]}

    def test_each_step_has_its_outcome(self):
        def shell(name, text, **more):
            return gpu_steps.Step(name, 20, ["sh", "-c", text], "", **more)
        found = self.outcomes(
            shell("well", "echo '{\"ms\": 1.5}'; echo text"), shell("fails", "exit 3"), shell("may fail", "exit 3", wanted=(0, 3)),
            shell("skips", "echo SKIPPED: no driver"), shell("lacks ranks", "echo 'SKIPPED: more ranks than GPUs (1)'", may_skip=True),
            shell("has to have ranks", "echo 'SKIPPED: more ranks than GPUs (1)'"),
            shell("is silent", "true", says="^all well"), gpu_steps.Step("isn't there", 20, ["/nonexistent"]))
        self.assertEqual({name: each["outcome"] for name, each in found.items()},
                         {"well": "ok", "fails": "status 3", "may fail": "ok", "skips": "skipped: no driver", "lacks ranks": "ok",
                          "has to have ranks": "skipped: more ranks than GPUs (1)",
                          "is silent": 'it didn\'t say "^all well"',
                          "isn't there": "[Errno 2] No such file or directory: '/nonexistent'"})
        self.assertEqual(found["well"]["figures"], [{"ms": 1.5}])

    def trained(self, **found):
        """Yields the outcome of a training that writes `found`: as a first run, and as one that goes on."""
        found = {"world_size": 2, "backend": "nccl", "device": "cuda:0", "test_accuracy": 0.9, "wall_seconds": 1, "first_step": 1,
                 "epochs": [{"samples_per_second": 9}], "steps": {"loader": {"median": 1}, "step": {"median": 2}}, **found}
        for name, goes_on in (("train", False), ("goes on", True)):
            yield self.outcomes(gpu_steps.Step(name, 20, ["sh", "-c", f"echo '{json.dumps(found)}' >train.json"], "",
                                               find=lambda _, folder, on=goes_on: gpu_steps.train_figures(_, folder, on)))[name]["outcome"]

    def test_a_training_counts_on_a_gpu_by_nccl_only(self):
        self.assertEqual(list(self.trained(first_step=5)), ["ok", "ok"])
        self.assertEqual(list(self.trained()), ["ok", "no figures: it began anew"])
        for found in ({"device": "cpu"}, {"backend": "host"}):
            for outcome in self.trained(first_step=5, **found):
                self.assertIn("no figures: it trained by ", outcome)

    def test_a_warm_restart_counts_if_the_rank_that_died_works_again(self):
        step, = (each for each in gpu_steps.plain(gpu_steps.Machine(self.folder, ["a card, 580.1"])) if each.name == "warm")
        warm, works = "all workers of round 2 run; 2 of 2 began warm\n", "attempt 1: rank 1 works\n"
        for said, is_enough in ((warm + works, True), (works + warm, True), (warm + "attempt 0: rank 1 works\n", False), (works, False)):
            self.assertEqual(gpu_steps.verdict(step, 0, "first line\n" + said, self.folder)[0] == "ok", is_enough, said)

    def test_a_step_that_hangs_leaves_no_process(self):
        pid = os.path.join(self.folder, "pid")
        found = self.outcomes(gpu_steps.Step("hangs", 1, ["sh", "-c", f"setsid sleep 100 & echo $! >{pid}; sleep 100"], ""))
        self.assertEqual(found["hangs"]["outcome"], "over its limit of 1 s")
        with open(pid, encoding="utf-8") as f:
            self.assertFalse(os.path.exists(f"/proc/{f.read().strip()}/exe"))

    def test_a_step_that_does_not_fit_the_deadline_is_not_run(self):
        self.assertEqual(self.outcomes(gpu_steps.Step("late", 20, ["true"]), deadline=5)["late"]["outcome"], "not run: the deadline")

    def test_every_section_names_programs_that_the_pack_has(self):
        with open(os.path.join(SOURCE, "bench/CMakeLists.txt"), encoding="utf-8") as f:
            packed = f.read()
        machine = gpu_steps.Machine(self.folder, ["a card, 580.1"])
        for section in gpu_steps.SECTIONS.values():
            for step in section(machine):
                for word in step.command:
                    if word.startswith(self.folder):
                        self.assertRegex(packed, rf"\b{os.path.basename(word)}\b")
                    elif word.startswith(SOURCE) and not word.endswith("data/digits"):
                        self.assertTrue(os.path.exists(word), word)


if __name__ == "__main__":
    runner.main()
