#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tests which LibTorch cmake/LibTorch.cmake takes, and its message about one that is too old or missing."""
import os
import subprocess
import sys
import tempfile
import unittest

SOURCE = os.environ.get("DDPRUN_SOURCE_DIR", os.path.abspath(__file__ + "/../../.."))
sys.path.insert(0, os.path.join(SOURCE, "tests/support"))
import runner  # noqa: E402

PROJECT = f"""cmake_minimum_required(VERSION 3.21)
project(outside NONE)
set_property(GLOBAL PROPERTY TARGET_SUPPORTS_SHARED_LIBS TRUE)
list(APPEND CMAKE_MODULE_PATH {SOURCE}/cmake)
include(LibTorch)
message(STATUS "found: ${{DDPRUN_TORCH_FOUND}}, version ${{DDPRUN_TORCH_VERSION}}, why: ${{DDPRUN_TORCH_WHY}}")
"""


class LibTorch(unittest.TestCase):
    def configure(self, version, wanted="AUTO"):
        """Returns CMake's exit status, its output, and the folder of a LibTorch of `version` (None: there is none)."""
        directory = tempfile.TemporaryDirectory(prefix="ddprun-libtorch-")
        self.addCleanup(directory.cleanup)
        torch = os.path.join(directory.name, "torch")
        os.makedirs(os.path.join(torch, "lib"))
        if version:
            with open(os.path.join(torch, "lib/libtorch_cpu.so"), "w", encoding="utf-8"):
                pass
            with open(os.path.join(torch, "version.py"), "w", encoding="utf-8") as f:
                f.write(f"from typing import Optional\n__all__ = ['__version__']\n__version__ = '{version}'\n")
        with open(os.path.join(directory.name, "CMakeLists.txt"), "w", encoding="utf-8") as f:
            f.write(PROJECT)
        done = subprocess.run(["cmake", "-S", directory.name, "-B", os.path.join(directory.name, "build"),
                               f"-DDDPRUN_WITH_TORCH={wanted}", f"-DDDPRUN_TORCH_ROOT={torch}"],
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=60)
        return done.returncode, done.stdout, torch

    def test_the_first_that_tells_the_handle_of_a_stream_and_all_later_ones(self):
        for version in ("2.11.0", "2.11.1+cpu", "2.15.0+cu132", "3.0.0"):
            with self.subTest(version):
                status, output, _ = self.configure(version)
                self.assertEqual(status, 0, output)
                self.assertIn(f"found: TRUE, version {version}, ", output)

    def test_an_older_one_is_left_out_in_one_line(self):
        for version in ("2.10.0+cpu", "2.9.1", "1.13.1"):
            with self.subTest(version):
                status, output, torch = self.configure(version)
                self.assertEqual(status, 0, output)
                self.assertIn("found: FALSE", output)
                self.assertIn(f"why: LibTorch {version} in {torch} is older than 2.11\n", output)

    def test_an_older_one_that_was_asked_for_is_an_error(self):
        status, output, torch = self.configure("2.10.0+cpu", wanted="ON")
        self.assertNotEqual(status, 0, output)
        self.assertIn(f"DDPRUN_WITH_TORCH=ON, but LibTorch 2.10.0+cpu in {torch} is older than 2.11",
                      " ".join(output.split()))

    def test_none_at_all(self):
        status, output, _ = self.configure(None)
        self.assertEqual(status, 0, output)
        self.assertIn("found: FALSE, version , why: no torch wheel in .venv", output)
        status, output, _ = self.configure(None, wanted="ON")
        self.assertNotEqual(status, 0, output)
        self.assertIn("DDPRUN_WITH_TORCH=ON, but no torch wheel in .venv", " ".join(output.split()))


if __name__ == "__main__":
    runner.main()
