#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tests DdpOptions::zero and ShardedOptimizer on real ranks. They have the results of plain DDP with FlatOptimizer,
with less memory (docs/zero.md)."""
import array
import itertools
import math
import os
import signal

import ranks
import netns  # noqa: E402, found by ranks
import runner  # noqa: E402, found by ranks

WORKER = os.path.join(ranks.BIN, "zero_worker")


class Zero(ranks.RanksTest):
    def run_mode(self, mode, worlds, **more):
        for world in worlds:
            with self.subTest(world=world):
                self.run_ranks(world, [WORKER, mode], **more)

    def test_parameters_are_plain_ddps_bit_for_bit_on_one_host(self):
        self.run_mode("equal", (1, 2, 4))

    def test_parameters_are_plain_ddps_if_gradients_are_divided_first_and_summed(self):
        self.run_ranks(4, ["env", "LIKE_NCCL=1", WORKER, "equal"])

    def test_parameters_are_plain_ddps_bit_for_bit_on_two_hosts(self):
        try:
            hosts = netns.Hosts(2)
        except netns.Unavailable as reason:
            self.skipTest(str(reason))
        with hosts, ranks.StoreServer(hosts[0]) as server:
            self.run_mode("equal", (2, 4), server=server, hosts=hosts)

    def test_state_goes_from_ddp_through_both_stages_and_back(self):
        self.run_mode("handover", (3,))

    def test_clipping_finds_ddps_norms(self):
        self.run_mode("clip", (3,))

    def test_an_overflow_in_one_ranks_part_is_every_ranks(self):
        self.run_mode("scaler", (4,))

    def test_a_rank_has_its_part_of_state_and_gradients_and_no_more(self):
        self.run_mode("memory", (4,))

    def test_options_that_do_not_go_together_are_refused(self):
        self.run_mode("refusals", (2,))

    def test_another_stage_is_refused_by_name_on_every_rank(self):
        codes, outputs = self.start_ranks(3, [WORKER, "mismatch"]).wait()
        self.assertEqual(codes, [1, 1, 1], outputs)
        for output in outputs:
            self.assertIn("rank 2: option zero is 2, on rank 0 it is 1", output)

    def test_a_killed_rank_is_named(self):
        codes, outputs = self.start_ranks(3, [WORKER, "lost"]).wait()
        self.assertEqual(codes, [1, 1, -signal.SIGKILL], outputs)
        for output in outputs[:2]:
            self.assertRegex(output, r"zero_worker: .*rank 2\b")

    def test_a_checkpoint_goes_on_with_another_stage_and_number_of_ranks(self):
        def parameters(path, legs):
            directory = self.scratch()
            for (stage, world), (first, last) in zip(legs, itertools.pairwise((0, 5, 10, 15, 20)[:: 4 // len(legs)])):
                job = [WORKER, "resume", str(stage), directory, str(first), str(last), path]
                self.run_ranks(world, job)
            found = []
            for rank in range(legs[-1][1]):
                with open(f"{path}.{rank}", "rb") as f:
                    found.append(array.array("d", f.read()))
            return found

        whole, = parameters(os.path.join(self.scratch(), "whole"), [(0, 1)])
        for here in parameters(os.path.join(self.scratch(), "legs"), [(0, 4), (1, 4), (2, 2), (0, 2)]):
            self.assertLessEqual(math.dist(here, whole), 1e-12 * math.hypot(*whole))


if __name__ == "__main__":
    ranks.skip_without_pytorch()
    runner.main()
