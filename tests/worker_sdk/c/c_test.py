#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tests libddprun_c.so: a C program calls all of its functions under ddprun. Also its exported and required symbols."""
import os
import re
import subprocess
import sys
import unittest

SOURCE = os.environ.get("DDPRUN_SOURCE_DIR", os.path.abspath(__file__ + "/../../../.."))
BIN = os.environ.get("DDPRUN_BIN_DIR", os.path.join(SOURCE, "build/dev/bin"))
sys.path.insert(0, os.path.join(SOURCE, "tests/support"))
import runner  # noqa: E402

LIBRARY = os.path.join(BIN, "libddprun_c.so")
HEADER = os.path.join(SOURCE, "worker_sdk/c/ddprun_c.h")


def output_of(*argv):
    return subprocess.run(argv, check=True, stdout=subprocess.PIPE, text=True).stdout


class Library(unittest.TestCase):
    def test_a_c_program_uses_all_of_it(self):
        for num_ranks in (2, 3):
            done = subprocess.run([os.path.join(BIN, "ddprun"), "--standalone", "--nproc-per-node=%d" % num_ranks,
                                   "--no-python", os.path.join(BIN, "c_worker")],
                                  stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=60)
            self.assertEqual(done.returncode, 0, done.stdout)
            self.assertEqual(done.stdout.count("all is well"), num_ranks, done.stdout)

    def test_the_program_above_calls_every_function_of_the_header(self):
        with open(HEADER, encoding="utf-8") as header, \
                open(os.path.join(SOURCE, "tests/worker_sdk/c/c_worker.c"), encoding="utf-8") as program:
            functions = set(re.findall(r"\b(ddprun_\w+)\(", header.read()))
            self.assertEqual(functions - set(re.findall(r"\b(ddprun_\w+)\(", program.read())), set())

    def test_it_shows_the_functions_of_the_header_alone_each_with_a_version(self):
        with open(HEADER, encoding="utf-8") as header:
            functions = set(re.findall(r"^DDPRUN_C_API .*?\b(ddprun_\w+)\(", header.read(), re.M))
        symbols = {line.split()[-1] for line in output_of("nm", "-D", "--defined-only", LIBRARY).splitlines()}
        self.assertEqual(symbols - {"DDPRUN_C_1"}, {name + "@@DDPRUN_C_1" for name in functions})

    def test_it_needs_the_c_library_alone(self):
        needed = re.findall(r"NEEDED.*\[(.*)\]", output_of("readelf", "-d", LIBRARY))
        self.assertLessEqual({name.split(".")[0] for name in needed}, {"libc", "libm", "libdl", "libpthread", "ld-linux-x86-64",
                                                                      "ld-linux-aarch64"})


if __name__ == "__main__":
    runner.main()
