# SPDX-License-Identifier: Apache-2.0
"""Jobs at two ddprunds on hosts of their own, of which one leads; and all that can be done to such a
group at random moments. DDPRUN_FAULT_KILLS=N: how many times (15; 10 under sanitizers)."""
import os
import signal

import fault_case
from fault_case import PATIENCE, PORT, harness, wait_until

KILLS = int(os.environ.get("DDPRUN_FAULT_KILLS") or ("10" if os.environ.get("DDPRUN_SANITIZE") else "15"))
LEASE = 2
LOST = 20  # seconds that a node runs on without a leader
LONGEST_PAUSE = 0.4  # seconds: rounds form, run and stop in that time
# Between a leader's loss and a round of all: the lease, its end being noticed, and a round.
PATIENCE_AFTER_LOSS = LEASE + 30 + PATIENCE


class TwoDdprunds(fault_case.FaultCase):
    """One on each of the hosts 1 and 2, and three agents. The first one leads. What decides it is a
    subclass's: begin_candidate(), leader(), follows()."""

    agent_hosts = (0, 1, 2)
    flags = ("--nnodes=1:3", "--nproc_per_node=2", "--max-restarts=100000", "--max-node-losses=100000",
             "--max-restart-delay=0", "--on-join=restart", "--rdzv-conf=last_call_timeout=0.05",
             f"--rendezvous-lost-timeout={LOST}")

    def setUp(self):
        super().setUp()
        self.candidates = {}
        self.begin_candidates()
        self.agents = [self.agent(index, *self.flags) for index in self.agent_hosts]
        self.await_round(world=6)

    def begin_ddprund(self, index, *flags):
        host = self.hosts[index]
        self.candidates[index] = self.launch(host, [
            harness.DDPRUND, f"--listen={host.address}:{PORT}", f"--ha-lease={LEASE}s",
            f"--ha-name={host.address}:{PORT}", *flags])

    def agent(self, index, *flags, **environment):
        endpoints = ",".join(f"{self.hosts[i].address}:{PORT}" for i in (1, 2))
        return self.launch(self.hosts[index], [
            harness.DDPRUN, f"--rdzv-endpoint={endpoints}", "--rdzv-id=job", "--shutdown-timeout=5", *flags,
            fault_case.WORKER, self.meet], **environment)

    def await_log(self, index, text, seconds=PATIENCE):
        wait_until(lambda: text in self.output_of(self.candidates[index]), f"ddprund {index}: {text}", seconds)

    def said_at(self, index, text):
        """The time of that line, as it begins with it."""
        return next(line.split()[0] for line in self.output_of(self.candidates[index]).splitlines() if text in line)

    def await_leader(self, index=None):
        """Who it was when it was asked: it may be another one by now."""
        found = []

        def leads():
            found[:] = [self.leader()]
            return found[0] in ((1, 2) if index is None else (index,))
        wait_until(leads, "one leads", LEASE + PATIENCE)
        return found[0]

    def end(self):
        self.finish_job()
        for agent in self.agents:
            self.check_end(agent, {0}, seconds=PATIENCE_AFTER_LOSS)
        for candidate in self.candidates.values():
            candidate.send_signal(signal.SIGCONT)
            candidate.terminate()
            self.assertEqual(candidate.wait(timeout=PATIENCE), 0)
        self.end_what_decides()
        self.check_clean()

    def end_what_decides(self):
        pass

    def pause(self):
        fault_case.time.sleep(self.random.uniform(0, LONGEST_PAUSE))


class RandomHarm:
    """A test of a subclass of TwoDdprunds."""

    def test_goes_through_kills_and_pauses_at_random_moments(self):
        for _ in range(KILLS):
            self.pause()
            what = self.random.choice(("worker", "warden", "agent", "leader", "standby", "paused leader"))
            getattr(self, "harm_" + what.replace(" ", "_"))()
            for host, agent in zip(self.hosts, self.agents):
                self.assertIsNone(agent.poll(), f"seed {self.seed}: {host.name} gave up after: {what}\n"
                                  f"{self.all_said() if agent.poll() is not None else ''}")
            self.check_one_rank_0()
        self.await_all_nodes()
        self.end()

    def await_all_nodes(self):
        """A node that came back last may wait beside the round, for minutes where restarts for one were in vain before
        (--on-join=restart). It has a place in the next round, and that comes when a worker is killed."""
        deadline = fault_case.time.monotonic() + 60 + PATIENCE_AFTER_LOSS
        while self.rounds().get(last := self.last_round()) != 6:
            self.assertLess(fault_case.time.monotonic(), deadline, f"seed {self.seed}: {self.rounds()}\n{self.all_said()}")
            for worker in self.named(0, "steady_worker")[:1]:
                self.kill(worker)
            self.await_round(after=last, seconds=PATIENCE_AFTER_LOSS)

    def harm_worker(self, name="steady_worker"):
        victims = self.named(self.random.randrange(3), name)
        if victims:
            self.kill(self.random.choice(victims))

    def harm_warden(self):
        self.harm_worker("ddprun-warden")

    def harm_agent(self):
        index = self.random.randrange(3)
        self.agents[index].kill()
        self.agents[index].wait()
        self.pause()
        self.agents[index] = self.agent(index, *self.flags)

    def harm_candidate(self, index):
        goes_on = self.goes_on_without(index)
        self.candidates[index].kill()
        self.candidates[index].wait()
        if self.random.random() < 0.5 or not goes_on:  # back before its lease is over, or after
            self.pause()
        else:
            self.await_leader(3 - index)
        self.begin_candidate(index)

    def harm_leader(self):
        self.harm_candidate(self.await_leader())

    def harm_standby(self):
        self.harm_candidate(3 - self.await_leader())

    def harm_paused_leader(self):
        index = self.await_leader()
        self.candidates[index].send_signal(signal.SIGSTOP)
        fault_case.time.sleep(self.random.uniform(0, 2 * LEASE))
        self.candidates[index].send_signal(signal.SIGCONT)
