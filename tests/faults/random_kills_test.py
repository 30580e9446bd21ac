#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Kills workers, wardens, agents and ddprund by SIGKILL at random moments. DDPRUN_FAULT_KILLS=N: how many (15)."""
import os

import fault_case
from fault_case import PATIENCE, wait_until

KILLS = int(os.environ.get("DDPRUN_FAULT_KILLS", "15"))
LONGEST_PAUSE = 0.4  # seconds: rounds form, run and stop in that time


class OneLongJob(fault_case.FaultCase):
    """Three hosts and a ddprund that keeps its jobs in a journal. Killed agents, and a killed ddprund, are started
    again, as a scheduler would."""

    flags = ("--nnodes=1:3", "--nproc_per_node=2", "--max-restarts=100000", "--max-node-losses=100000",
             "--max-restart-delay=0", "--on-join=restart",
             # is_host=0: otherwise a node that starts while ddprund is down would serve the rendezvous itself.
             "--rdzv-conf=last_call_timeout=0.05,is_host=0")

    def test_goes_through_kills_at_random_moments(self):
        state = f"--state-dir={os.path.join(self.scratch(), 'state')}"
        daemon = self.daemon(0, state)
        agents = [self.agent(host.index, *self.flags) for host in self.hosts]
        self.await_round(world=6)
        killed = 0
        while killed < KILLS // 2:
            self.pause()
            index = self.random.randrange(len(self.hosts))
            what = self.random.choice(("worker", "warden", "agent", "ddprund"))
            if what == "ddprund":
                daemon.kill()
                daemon.wait()
                self.pause()
                daemon = self.daemon(0, state)
            elif what == "agent":
                agents[index].kill()
                agents[index].wait()
                self.pause()
                agents[index] = self.agent(index, *self.flags)
            else:
                victims = self.named(index, "steady_worker" if what == "worker" else "ddprun-warden")
                if not victims:  # the round has not begun
                    continue
                self.kill(self.random.choice(victims))
            killed += 1
            for host, agent in zip(self.hosts, agents):
                self.assertIsNone(agent.poll(), f"seed {self.seed}: {host.name} gave up\n"
                                  f"{self.output_of(agent) if agent.poll() is not None else ''}")
            self.check_one_rank_0()
        # The node that came back last may have to wait for 30 s, or for 60 s after a failed restart for it.
        self.await_round(after=self.last_round() - 1, world=6, seconds=60 + PATIENCE)
        self.finish_job()
        for agent in agents:
            self.check_end(agent, {0})
        self.check_clean(daemon)

    def pause(self):
        fault_case.time.sleep(self.random.uniform(0, LONGEST_PAUSE))


class ManyShortJobs(fault_case.FaultCase):
    """Two hosts; the first one's ddprun serves the rendezvous. One kill comes while the job starts or runs."""

    num_hosts = 2
    rendezvous_timeout = 3
    longest_wait = 0.2  # seconds from the start to the kill; the workers run after some 50 ms

    def test_each_goes_on_or_ends_with_its_cause(self):
        for number in range(KILLS - KILLS // 2):
            with self.subTest(number=number, seed=self.seed):
                self.begin_job()
                self.one_job()

    def one_job(self):
        flags = ("--nnodes=2", "--nproc_per_node=2", "--max-restarts=1",
                 f"--rendezvous-timeout={self.rendezvous_timeout}")
        agents = [self.agent(host.index, *flags) for host in self.hosts]
        fault_case.time.sleep(self.random.uniform(0, self.longest_wait))
        index = self.random.randrange(2)
        what = self.random.choice(("worker", "warden", "agent"))
        if what == "agent":
            agents[index].kill()
            agents[index].wait()
            # 69: the serving node never answered. 75: the other node never came, or was lost.
            self.check_end(agents[1 - index], {69, 75} if index == 0 else {75},
                           seconds=self.rendezvous_timeout + PATIENCE)
        else:
            name = "steady_worker" if what == "worker" else "ddprun-warden"
            wait_until(lambda: self.named(index, name), f"seed {self.seed}: a {name} runs")
            self.kill(self.random.choice(self.named(index, name)))
            self.await_round(after=1, world=4)
            self.finish_job()
            for agent in agents:
                self.check_end(agent, {0})
        self.check_clean()


if __name__ == "__main__":
    fault_case.main()
