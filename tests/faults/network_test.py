#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tests faults of networks: links that are down or silent in one direction, delay, loss, no name service."""
import contextlib
import os
import re
import time

import fault_case
import harness
from fault_case import PATIENCE, PORT, wait_until

KEEP_ALIVE = 1.5
# Seconds until the silence is noticed and the workers are killed, and one for a loaded machine.
FENCED_WITHIN = KEEP_ALIVE + 1 + 1
FLAGS = ("--nproc_per_node=2",  "--max-restarts=20", "--max-restart-delay=0",
         f"--rdzv-conf=keep_alive_timeout={KEEP_ALIVE},last_call_timeout=1.5")


class Network(fault_case.FaultCase):
    """The rendezvous is on host 0; hosts 1 and 2 work, and rank 0 is on host 1."""

    faulty_cables = True

    def begin(self, nnodes, *flags, program=None):
        self.rendezvous = self.daemon(0)
        return [self.agent(index, f"--nnodes={nnodes}", *FLAGS, *flags, program=program)
                for index in (1, 2)]

    def lose_rank_0_by(self, *flags, **faults):
        """Gives the cable of rank 0's host these faults for ever. Checks that the other host goes on."""
        first, second = self.begin("1:2", *flags, program=[fault_case.WORKER, self.meet, "deaf"])
        self.await_round(world=4)
        before = self.last_round()
        rank_0, other = (1, 2) if self.rank_0_is_on(1) else (2, 1)
        cut, left = (first, second) if rank_0 == 1 else (second, first)
        begin = time.monotonic()
        self.hosts[rank_0].cable.set(**faults)
        wait_until(lambda: not self.named(rank_0, "steady_worker"), "the cut-off host has no workers",
                   FENCED_WITHIN)
        # No round starts before the lost host must have stopped its workers, which is 2 s after the loss.
        self.await_round(after=before, world=2, seconds=KEEP_ALIVE + 2 + PATIENCE)
        self.assertGreater(time.monotonic() - begin, KEEP_ALIVE)
        self.check_one_rank_0()
        self.assertIn(f"node{rank_0}", self.output_of(left))
        self.assertIn("nothing was heard of it", self.output_of(left))
        return rank_0, cut, left

    def rank_0_is_on(self, index):
        for pid in self.named(index, "steady_worker"):
            with contextlib.suppress(OSError), open(f"/proc/{pid}/environ", "rb") as f:  # the process may have ended
                if b"RANK=0" in f.read().split(b"\0"):
                    return True
        return False

    def end_well(self, *agents):
        self.finish_job()
        for agent in agents:
            self.check_end(agent, {0})
        self.check_clean(self.rendezvous)

    def test_link_down_and_mended_the_lost_node_is_told_and_leaves(self):
        rank_0, cut, left = self.lose_rank_0_by(cut_to_host=True, cut_from_host=True)
        self.hosts[rank_0].cable.set()
        self.check_end(cut, {75}, "was lost|given up|too late")
        self.end_well(left)

    def test_link_down_for_good_the_lost_node_gives_up_by_itself(self):
        _, cut, left = self.lose_rank_0_by("--rendezvous-lost-timeout=4", cut_to_host=True,
                                            cut_from_host=True)
        self.check_end(cut, {69}, "lost the rendezvous for good")
        self.end_well(left)

    def test_packets_from_the_node_are_lost(self):
        rank_0, cut, left = self.lose_rank_0_by(cut_from_host=True)
        self.hosts[rank_0].cable.set()
        self.check_end(cut, {75})
        self.end_well(left)

    def test_packets_to_the_node_are_lost(self):
        rank_0, cut, left = self.lose_rank_0_by(cut_to_host=True)
        self.hosts[rank_0].cable.set()
        self.check_end(cut, {75})
        self.end_well(left)

    def test_the_other_node_never_comes_back_and_the_cut_off_one_ends_in_time(self):
        self.rendezvous = self.daemon(0)
        flags = ("--nnodes=2", "--rendezvous-lost-timeout=4", *FLAGS)
        agents = [self.agent(index, *flags) for index in (1, 2)]
        self.await_round(world=4)
        self.hosts[1].cable.set(cut_to_host=True, cut_from_host=True)
        # 69: the agent lost the rendezvous for good, 4 s after it noticed the silence. 75: the other node was lost.
        self.check_end(agents[0], {69}, "lost the rendezvous for good", FENCED_WITHIN + 4 + PATIENCE)
        self.check_end(agents[1], {75}, "node1.* was lost: nothing was heard of it for 1500 ms")
        self.check_clean(self.rendezvous)

    def survives(self, num_kills, world, *flags):
        """Checks that rounds form, fail and form again over bad cables, and that no node is given up."""
        patience = 3 * PATIENCE
        agents = self.begin("2", "--max-node-losses=0", *flags)
        self.await_round(world=world, seconds=patience)
        for _ in range(num_kills):
            before = self.last_round()
            self.kill(self.random.choice(self.named(1 + self.random.randrange(2), "steady_worker")))
            self.await_round(after=before, world=world, seconds=patience)
        self.finish_job()
        for agent in agents:
            self.check_end(agent, {0}, seconds=patience)
        self.check_clean(self.rendezvous)

    def test_a_delay_of_300_ms_each_way(self):
        self.hosts[2].cable.set(delay=0.3)
        self.survives(1, 2, "--nproc_per_node=1")  # a communicator's set-up takes some 20 round trips

    def test_a_loss_of_5_percent(self):
        for host in self.hosts:
            host.cable.set(loss=0.05, seed=self.seed + host.index)
        # TCP sends again after 0.2, 0.4, 0.8 s, … Silence of 1.5 s means three losses in a row.
        self.survives(3, 4, "--keep-alive-timeout=5")

    def ended_apart_ms(self):
        """Returns the milliseconds between both workers' ends, by the clock that the hosts share."""
        ended = []
        for index in (2, 1):
            with open(f"{self.meet}/end.node{index}") as file:
                ended.append(int(file.read()))
        return (ended[1] - ended[0]) / 1e6

    def test_the_first_failure_is_named_though_the_news_of_it_come_second(self):
        # Host 1's worker fails 100 ms after host 2's, but host 2's message takes 1 s.
        self.hosts[2].cable.set(delay=0.3)
        go = os.path.join(self.meet, "go")
        script = (f'echo up > {self.meet}/up.$(hostname); until [ -e {go} ]; do sleep 0.01; done; '
                  f'end() {{ date +%s%N >{self.meet}/end.$(hostname); exit $1; }}; '
                  '[ "$(hostname)" = node2 ] && end 7; sleep 0.1; end 8')
        self.rendezvous = self.daemon(0)
        # Pings, which compare the clocks, go out at once and at each third of the keep-alive time.
        agents = [self.agent(index, "--nnodes=2", "--no-python", program=["sh", "-c", script])
                  for index in (1, 2)]
        wait_until(lambda: all(os.path.exists(f"{self.meet}/up.node{i}") for i in (1, 2)), "both run")
        self.hosts[2].cable.set(delay=1)  # only now, because the workers' meeting takes some 20 round trips
        time.sleep(0.5)
        open(go, "w").close()
        for agent in agents:
            said = self.check_end(agent, {7}, r"host +node2 \(node rank \d\)")
            victim = re.search(r"victim +rank \d \(node \d, node1, .*exit code 8 ([\d.]+) ms later \(± ([\d.]+)", said)
            self.assertIsNotNone(victim, said)
            later, error = map(float, victim.groups())
            self.assertLess(abs(later - self.ended_apart_ms()), error, said)
        self.assertIn("the first failure was another one: rank", self.output_of(self.rendezvous))
        self.check_clean(self.rendezvous)


class NoNameService(fault_case.FaultCase):
    """Every host's resolver asks a name server that doesn't answer. Its timeout is longer than any of ddprun's."""

    num_hosts = 2

    def setUp(self):
        super().setUp()
        resolver = self.write(self.meet, "resolv.conf", "nameserver 10.77.0.99\noptions timeout:30 attempts:1\n")
        for host in self.hosts:
            host.run(["mount", "--bind", resolver, os.path.realpath("/etc/resolv.conf")], check=True,
                     timeout=10)

    def test_a_job_by_addresses_does_not_notice(self):
        agents = [self.agent(host.index, "--nnodes=2") for host in self.hosts]
        self.await_round(world=2)
        self.finish_job()
        for agent in agents:
            self.check_end(agent, {0})
        self.check_clean()

    def test_a_name_that_can_not_be_resolved_ends_it_in_time_and_is_named(self):
        host = self.hosts[1]
        agent = self.start(f"--rdzv-endpoint=no-such-host.example:{PORT}", "--rdzv-id=job",
                           "--nnodes=2", "--rendezvous-timeout=2", "true", host=host)
        done = self.finish(agent, timeout=2 + PATIENCE, code=69)
        self.assertIn("the name no-such-host.example can't be resolved", done.stderr)


if __name__ == "__main__":
    fault_case.main(faulty_cables=True)
