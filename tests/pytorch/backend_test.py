#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tests dist.init_process_group("ddprun"): its results, and programs that use it, compared with gloo
(docs/torch-backend.md)."""
import os
import re
import subprocess
import sys
import unittest
from concurrent.futures import ThreadPoolExecutor

import harness

SOURCE = os.path.join(harness.HERE, "../..")
ENTRY_POINTS = "[torch.distributed.backends]\nddprun = ddprun.torch:register\n"


class Installed(harness.Job):
    """Python finds the package as if pip had installed it."""

    @classmethod
    def setUpClass(cls):
        cls.folder = harness.scratch()
        cls.addClassCleanup(cls.folder.cleanup)
        os.symlink(os.path.abspath(os.path.join(SOURCE, "python/ddprun")), os.path.join(cls.folder.name, "ddprun"))
        information = os.path.join(cls.folder.name, "ddprun-0.dist-info")
        os.mkdir(information)
        for name, text in (("entry_points.txt", ENTRY_POINTS), ("METADATA", "Metadata-Version: 2.1\nName: ddprun\n")):
            with open(os.path.join(information, name), "w") as file:
                file.write(text)

        cls.variables = {"PYTHONPATH": cls.folder.name, "DDPRUN_PROGRAM": harness.DDPRUN, "OMP_NUM_THREADS": "1"}

    def check_told(self, output):
        """Checks what the ranks of jobs/backend_death.py that live have printed."""
        told = re.findall(r"told after ([\d.]+) s: (.*)", output)
        self.assertEqual(len(told), 2, self.transcript)
        for seconds, text in told:
            self.assertIn("rank 1 was lost", text)
            self.assertLess(float(seconds), 1)


class Hosts(Installed):
    def test_each_call_gives_what_gloo_gives_on_two_hosts(self):
        hosts = harness.netns.Hosts(2, own_name_is_loopback=True)
        self.addCleanup(hosts.close)
        codes, outputs = self.run_on_hosts(
            hosts, lambda host: ["--nnodes=2", "--nproc-per-node=%d" % (2 - host.index), "--node-rank=%d" % host.index,
                                 "--master-addr=" + hosts[0].address, "--master-port=29500", harness.job("backend_calls")],
            GLOO_SOCKET_IFNAME=hosts[0].interface, **self.variables)
        self.assertEqual(codes, [0, 0], self.transcript)

    def test_a_killed_rank_is_named_on_the_other_host_within_a_second(self):
        hosts = harness.netns.Hosts(2, own_name_is_loopback=True)
        self.addCleanup(hosts.close)
        with harness.scratch() as folder:
            _, outputs = self.run_on_hosts(
                hosts, lambda host: ["--nnodes=2", "--nproc-per-node=%d" % (2 - host.index), "--node-rank=%d" % host.index,
                                     "--master-addr=" + hosts[0].address, "--master-port=29500", "--shutdown-timeout=10",
                                     harness.job("backend_death")],
                DEATH=os.path.join(folder, "died"), **self.variables)
        self.check_told("".join(outputs))


class Backend(Installed):
    def run_ranks(self, name, num_ranks, *flags, **more):
        return self.run_job("--standalone", "--nproc-per-node=%d" % num_ranks, *flags, harness.job(name), timeout=100,
                            **self.variables, **more)

    def test_each_call_gives_what_gloo_gives(self):
        done = self.run_ranks("backend_calls", 3)
        self.assertEqual(done.returncode, 0, self.transcript)
        self.assertGreater(int(re.search(r"compared (\d+)", done.stdout)[1]), 300)

    def test_modules_that_pytorch_builds_on_it_train_to_the_weights_of_gloo(self):
        done = self.run_ranks("backend_models", 2)
        self.assertEqual(done.returncode, 0, self.transcript)
        self.assertEqual(done.stdout.count("equal:"), 7, self.transcript)

    def test_a_device_mesh_of_two_dimensions_has_a_group_for_each(self):
        done = self.run_ranks("backend_mesh", 4)
        self.assertEqual((done.returncode, done.stdout.count("mesh of rank")), (0, 4), self.transcript)

    def test_a_pytorch_without_backends_in_python_is_refused_by_name(self):
        text = ("import torch, torch.distributed as dist\ndel torch._C._distributed_c10d.Backend.all_gather_single\n"
                "dist.init_process_group('ddprun', store=dist.HashStore(), rank=0, world_size=1)")
        done = subprocess.run([sys.executable, "-c", text], env=harness.environment(**self.variables), text=True,
                              stderr=subprocess.PIPE, timeout=100)
        self.assertRegex(done.stderr, r'RuntimeError: the backend "ddprun" needs PyTorch 2.14 or newer, and this is 2\.')

    def test_a_killed_rank_is_named_on_every_rank_within_a_second(self):
        with harness.scratch() as folder:
            done = self.run_ranks("backend_death", 3, "--shutdown-timeout=10", DEATH=os.path.join(folder, "died"))
        self.check_told(done.stdout)

    def test_a_replica_of_torchft_that_is_killed_comes_back_to_the_same_weights(self):
        lighthouse = subprocess.Popen([sys.executable, harness.job("lighthouse")], stdin=subprocess.PIPE,
                                      stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        self.addCleanup(lighthouse.communicate)  # the lighthouse ends at the end of its input
        address = lighthouse.stdout.readline().strip()
        with ThreadPoolExecutor() as threads:
            jobs = [threads.submit(self.run_ranks, "backend_torchft", 1, "--max-restarts=1", REPLICA=str(replica),
                                   TORCHFT_LIGHTHOUSE=address) for replica in (0, 1)]
        for each in jobs:
            self.assertEqual(each.result().returncode, 0, each.result().stderr[-8000:])
        told = [re.search(r"replica \d: (\d+) steps alone, parameters (\w+)", each.result().stdout) for each in jobs]
        self.assertGreater(int(told[0][1]), 0)
        self.assertEqual(told[0][2], told[1][2])


if __name__ == "__main__":
    harness.main()
