#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tests that the shipped programs and the library for C are hardened. Their ELF files show the linker's and the
compiler's options.

    hardening_test.py [WHEEL]      a wheel's files in place of a build's (scripts/wheel_check.sh)
"""
import os
import re
import subprocess
import sys
import unittest
import zipfile

BIN = os.environ.get("DDPRUN_BIN_DIR", "")
SOURCE = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.insert(0, os.path.join(SOURCE, "tests/support"))
import files  # noqa: E402
import runner  # noqa: E402

WHEEL = sys.argv.pop() if sys.argv[-1].endswith(".whl") else None
LIBRARY = "libddprun_c.so"
GUARD = rb"\x64[\x48\x4c][\x8b\x33\x3b\x2b].\x25\x28\0\0\0"  # `mov %fs:40, …`, xor, cmp or sub
PROGRAMS = ("ddprun", "ddprund", "ddprunctl", "ddprun-agent", "ddprun-check", "ddprun-gpus", "ddprun-stacks", "train")
WARDEN = "ddprun-warden"  # it is linked statically, so it has no dynamic symbols


def read(*arguments):
    return subprocess.run(["readelf", "-W", *arguments], capture_output=True, text=True, check=True).stdout


def elf_files(folder):
    """Yields (name, path) of each ELF file in the folder."""
    for path in files.below(folder):
        path = os.path.join(folder, path)
        if os.path.isfile(path) and not os.path.islink(path):
            with open(path, "rb") as file:
                if file.read(4) == b"\x7fELF":
                    yield os.path.basename(path), path


class Hardening(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        if not WHEEL:
            cls.paths = {name: os.path.join(BIN, name) for name in (*PROGRAMS, WARDEN, LIBRARY)}
            if not os.path.exists(cls.paths["train"]):  # a build without LibTorch has none
                del cls.paths["train"]
            return
        folder = files.scratch_of_class(cls)
        with zipfile.ZipFile(WHEEL) as wheel:
            wheel.extractall(folder)
        cls.paths = dict(elf_files(folder))

    def check_file(self, path):
        self.assertRegex(read("-h", path), r"Type:\s+DYN", "its addresses aren't random: -pie")
        dynamic = read("-d", path)
        self.assertRegex(dynamic, r"FLAGS_1\).*\bNOW\b", "its table of functions can be written: -z now")
        if not path.endswith(".so"):
            self.assertRegex(dynamic, r"FLAGS_1\).*\bPIE\b")
        segments = read("-l", path)
        self.assertIn("GNU_RELRO", segments, "-z relro")
        stack = re.search(r"GNU_STACK.*", segments).group()
        self.assertNotIn("E", stack.split()[-2], "its stack can be executed")
        self.assertNotIn("RWE", segments)

    def test_each_file_has_random_addresses_and_no_table_that_can_be_written(self):
        self.assertLessEqual({*PROGRAMS[:4], WARDEN, LIBRARY}, set(self.paths))
        for name, path in self.paths.items():
            with self.subTest(name):
                self.check_file(path)

    if WHEEL:
        def test_no_file_names_the_folder_that_it_was_built_in(self):
            for name, path in self.paths.items():
                with self.subTest(name), open(path, "rb") as file:
                    self.assertNotIn(SOURCE.encode(), file.read())

    def check_guards(self, path):
        with open(path, "rb") as file:
            program = file.read()
        if program[18] == 62:  # x86-64; ARM64's guard is a variable, whose reads have no typical bytes
            # The wheel's compiler has an own __stack_chk_fail, and names are stripped.
            self.assertGreater(len(re.findall(GUARD, program)), 1000, "-fstack-protector-strong")

    @staticmethod
    def is_debug():
        with open(os.path.join(os.path.dirname(BIN), "CMakeCache.txt"), encoding="utf-8") as cache:
            return "CMAKE_BUILD_TYPE:STRING=Debug\n" in cache.read()

    def test_stacks_and_buffers_are_checked(self):
        # A wheel's `ddprund` holds ddprunctl and ddprun-agent, which only start it.
        for name in ("ddprun", "ddprund", LIBRARY) if WHEEL else (*PROGRAMS[:4], LIBRARY):
            with self.subTest(name):
                symbols = read("--dyn-syms", self.paths[name])
                if WHEEL:
                    self.check_guards(self.paths[name])
                else:
                    self.assertIn("__stack_chk_fail", symbols, "-fstack-protector-strong")
                if WHEEL or not self.is_debug():  # this check needs optimisation
                    self.assertRegex(symbols, r"__\w+_chk\b", "_FORTIFY_SOURCE")
        if not WHEEL:  # a wheel's warden has no symbols
            self.assertIn("__stack_chk_fail", read("-s", self.paths[WARDEN]))


if __name__ == "__main__":
    runner.main()
