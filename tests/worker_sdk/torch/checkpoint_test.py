#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tests Checkpoint on 1, 2 and 4 real ranks, also against Python's safetensors. checkpoint_worker.cc has the checks."""
import os
import subprocess
import unittest
import zlib

import ranks
import runner

WORKER = os.path.join(ranks.BIN, "checkpoint_worker")
PROBE = os.path.join(ranks.BIN, "safetensors_probe")

READ = """
import sys, zlib, safetensors, safetensors.numpy, torch
from safetensors import safe_open
with safe_open(sys.argv[1], "pt") as file:
    print(file.metadata()["note"])
    for name in sorted(file.keys()):
        tensor = file.get_tensor(name)
        print(name, str(tensor.dtype), list(tensor.shape), tensor.double().flatten().tolist())
"""
WRITE = """
import sys, torch
from safetensors.torch import save_file
save_file({"b": torch.arange(6, dtype=torch.float16).view(3, 2), "a": torch.tensor([True, False]),
           "none": torch.zeros(0, 4), "scalar": torch.tensor(7)}, sys.argv[1], {"format": "pt"})
"""


def python(script, *args):
    done = subprocess.run([ranks.PYTHON, "-c", script, *args], text=True, capture_output=True, timeout=60)
    if "No module named 'safetensors'" in done.stderr:
        raise unittest.SkipTest("Python's safetensors is not installed (scripts/setup.sh full)")
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


class CheckpointTest(ranks.RanksTest):
    def run_mode(self, mode, world, directory=None):
        directory = directory or self.scratch()
        return self.run_ranks(world, [WORKER, mode, directory])

    def test_a_saved_state_is_loaded_on_every_rank(self):
        for world in (1, 2, 4):
            with self.subTest(world=world):
                self.run_mode("roundtrip", world)

    def test_a_state_that_does_not_belong_is_refused_on_every_rank_and_nothing_changed(self):
        self.run_mode("refused", 2)

    def test_an_error_of_the_writers_thread_is_said_at_the_next_call(self):
        self.run_mode("error", 2)

    def test_a_state_that_could_not_be_loaded_again_is_refused_before_it_is_written(self):
        self.run_mode("unsavable", 2)

    def test_a_rank_that_loads_alone_hears_that_all_do(self):
        self.run_mode("alone", 2)

    def test_every_rank_writes_a_shard_and_any_number_of_ranks_reads_them(self):
        directory = self.scratch()
        for world in (1, 4):
            with self.subTest(world=world):
                directory = self.scratch()
                self.run_mode("sharded", world, directory)
        self.run_mode("resharded", 2, directory)

    def test_shards_that_no_host_sees_together_and_one_that_cannot_be_written(self):
        self.run_mode("apart", 2)
        self.run_mode("shard_error", 2)

    def test_own_tensors_that_one_rank_cannot_load_are_an_error_on_every_rank(self):
        self.run_mode("own_error", 4)

    def test_pythons_safetensors_reads_ours(self):
        directory = self.scratch()
        subprocess.run([WORKER, "roundtrip", directory], check=True, timeout=60)
        lines = python(READ, os.path.join(directory, "async", "step-000000000003.safetensors"))
        self.assertEqual(lines[0], "3")
        found = {line.split(" ", 1)[0]: line.split(" ", 1)[1] for line in lines[1:]}
        whole = "[3.0, 4.0, 5.0, 6.0, 7.0, 8.0]"
        for name, dtype in (("Float", "float32"), ("Double", "float64"), ("Half", "float16"), ("BFloat16", "bfloat16"),
                            ("Long", "int64"), ("Int", "int32"), ("Short", "int16"), ("Char", "int8"),
                            ("Byte", "uint8")):
            self.assertEqual(found.pop(f"of.{name}"), f"torch.{dtype} [2, 3] {whole}")
        self.assertEqual(found.pop("of.Bool"), "torch.bool [2, 3] [1.0, 1.0, 1.0, 1.0, 1.0, 1.0]")
        self.assertEqual(found.pop("transposed"), "torch.float32 [4, 3] [3.0, 7.0, 11.0, 4.0, 8.0, 12.0, 5.0, 9.0, "
                         "13.0, 6.0, 10.0, 14.0]")
        self.assertEqual(found.pop("scalar"), "torch.float32 [] [3.0]")
        self.assertEqual(found.pop("empty"), "torch.float32 [0, 3] []")
        self.assertEqual(found, {})

    def test_we_read_what_pythons_safetensors_wrote(self):
        path = os.path.join(self.scratch(), "theirs.safetensors")
        python(WRITE, path)
        done = subprocess.run([PROBE, path], text=True, capture_output=True, timeout=60)
        self.assertEqual(done.returncode, 0, done.stderr)
        halves = b"\0\0\0\x3c\0\x40\0\x42\0\x44\0\x45"
        self.assertEqual(sorted(done.stdout.splitlines()), sorted(
            [f"b F16 [3,2] {zlib.crc32(halves)}", f"a BOOL [2] {zlib.crc32(bytes([1, 0]))}", "none F32 [0,4] 0",
             f"scalar I64 [] {zlib.crc32(bytes([7, 0, 0, 0, 0, 0, 0, 0]))}", "format=pt"]))


if __name__ == "__main__":
    ranks.skip_without_pytorch()
    runner.main()
