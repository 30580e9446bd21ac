#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tests unchanged PyTorch programs under ddprun on two hosts (network namespaces)."""
import harness
from harness import netns


class TwoHosts(harness.Job):
    def setUp(self):
        # /etc/hosts is as Debian's installer leaves it, so Gloo must not use the host's name.
        self.hosts = netns.Hosts(2, own_name_is_loopback=True)
        self.addCleanup(self.hosts.close)

    def test_ddp_on_2_hosts_with_2_ranks_each(self):
        endpoint = f"--rdzv-endpoint={self.hosts[0].address}:29400"
        codes, outputs = self.run_on_hosts(
            self.hosts, lambda _: ["--nnodes=2", "--nproc_per_node=2", endpoint, harness.job("ddp")])
        self.assertEqual(codes, [0, 0], self.transcript)
        self.assertEqual(self.lines("".join(outputs), "trained rank"),
                         [f"trained rank {r} of 4" for r in range(4)], self.transcript)

    def test_rpc_reaches_the_other_host(self):
        endpoint = f"--rdzv-endpoint={self.hosts[0].address}:29400"
        codes, outputs = self.run_on_hosts(self.hosts, lambda _: ["--nnodes=2", endpoint, harness.job("rpc")])
        self.assertEqual(codes, [0, 0], self.transcript)
        self.assertEqual(self.lines("".join(outputs), "rank "), ["rank 0 hears 1", "rank 1 hears 0"], self.transcript)

    def test_fixed_ranks_with_master_addr(self):
        codes, outputs = self.run_on_hosts(
            self.hosts, lambda host: ["--nnodes=2", "--nproc_per_node=1",
                                      f"--node-rank={1 - host.index}",
                                      f"--master-addr={self.hosts[1].address}", "--master-port=29500",
                                      harness.job("groups")])
        self.assertEqual(codes, [0, 0], self.transcript)
        self.assertIn("agreed rank 1 of 2", outputs[0], self.transcript)
        self.assertIn("agreed rank 0 of 2", outputs[1], self.transcript)

    def test_restart_after_a_rank_on_the_other_host_died(self):
        endpoint = f"--rdzv-endpoint={self.hosts[0].address}:29400"
        codes, outputs = self.run_on_hosts(
            self.hosts, lambda _: ["--nnodes=2", "--nproc_per_node=1", "--max-restarts=1", endpoint,
                                   harness.job("restart"), "1"])
        self.assertEqual(codes, [0, 0], self.transcript)
        self.assertEqual(self.lines("".join(outputs), "attempt "),
                         [f"attempt {n}: rank {r} works" for n in range(2) for r in range(2)],
                         self.transcript)


if __name__ == "__main__":
    netns.hosts_or_skip(1).close()
    harness.main()
