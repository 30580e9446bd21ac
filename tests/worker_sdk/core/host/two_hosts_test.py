#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tests 2 × 2 ranks of the host communicator on two hosts: network namespaces without a shared /dev/shm."""
import os
import random
import subprocess
import sys
import unittest

SOURCE = os.environ.get("DDPRUN_SOURCE_DIR", os.path.abspath(__file__ + "/../../../../.."))
sys.path.insert(0, os.path.join(SOURCE, "tests/support"))
import netns  # noqa: E402
import runner  # noqa: E402

WORKER = os.path.join(os.environ.get("DDPRUN_BIN_DIR", SOURCE + "/build/dev/bin"), "host_test_worker")


class Ranks:
    """The ranks of `layout` (the host of each rank), started in `mode`."""

    def __init__(self, hosts, mode, layout):
        self.store = hosts[0].popen([WORKER, "serve", hosts[0].address], stdin=subprocess.PIPE,
                                    stdout=subprocess.PIPE, text=True)
        port = self.store.stdout.readline().strip()
        self.processes = [
            hosts[host].popen([WORKER, mode, str(rank), str(len(layout)), str(host),
                               hosts[host].address, hosts[0].address, port],
                              stdout=subprocess.PIPE, text=True)
            for rank, host in enumerate(layout)]

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for process in [self.store, *self.processes]:
            process.kill()
            process.wait()
            process.stdout.close()
        self.store.stdin.close()

    def outputs(self):
        return [process.communicate(timeout=60)[0].strip() for process in self.processes]


class TwoHostsTest(unittest.TestCase):
    def test_every_operation_is_right_and_bit_equal_on_all_ranks(self):
        for layout in ([0, 0, 1, 1], [0, 1, 1]):
            with netns.Hosts(2) as hosts:
                with Ranks(hosts, "check", layout) as first, Ranks(hosts, "check", layout) as second:
                    outputs = first.outputs() + second.outputs()
                self.assertTrue(outputs[0].startswith("ok "), outputs)
                self.assertEqual(set(outputs), {outputs[0]})  # the outputs of all ranks in both runs are equal

    def test_a_rank_killed_on_one_host_is_named_on_both_before_an_operation_times_out(self):
        with netns.Hosts(2) as hosts:
            for victim in [0, 3, *random.Random(5).choices(range(4), k=4)]:
                with Ranks(hosts, "forever", [0, 0, 1, 1]) as ranks:
                    for process in ranks.processes:
                        self.assertEqual(process.stdout.readline(), "running\n")
                    ranks.processes[victim].kill()
                    for rank, text in enumerate(ranks.outputs()):  # within a minute; an operation has ten
                        if rank != victim:
                            self.assertTrue(text.startswith(f"rank {victim} was lost"), text)


if __name__ == "__main__":
    netns.hosts_or_skip(1).close()
    runner.main()
