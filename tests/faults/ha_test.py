#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Jobs with two ddprunds and an etcd on hosts of their own. Leaders, standbys, agents and workers are killed, paused
and cut off at random moments. DDPRUN_FAULT_KILLS=N: how many times (8)."""
import base64
import json
import os
import signal
import sys

import fault_case  # import it first: it says where the other modules are
import etcd
import skips
from fault_case import PATIENCE, PORT, harness, wait_until

KILLS = int(os.environ.get("DDPRUN_FAULT_KILLS") or "8")
LEASE = 2
LOST = 20  # seconds for which a node runs on without a leader
LONGEST_PAUSE = 0.4  # seconds: rounds form, run and stop in that time
# Time between a leader's loss and a round of all nodes: the lease, the notice of its end, and a round.
PATIENCE_AFTER_LOSS = LEASE + 30 + PATIENCE


GET_LEADER = """
import base64, sys, urllib.request
key = base64.b64encode(b"/ddprun/leader").decode()
request = urllib.request.Request("http://" + sys.argv[1] + "/v3/kv/range", b'{"key":"%s"}' % key.encode())
print(urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request, timeout=5).read().decode())
"""


class HaCase(fault_case.FaultCase):
    """Hosts 1 and 2 have a ddprund each; there are three agents. The first ddprund leads. etcd is on the first host,
    unless a subclass names another one."""

    etcd_host = 0
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

    def begin_candidates(self):
        self.etcd = etcd.Etcd(self.scratch(), self.hosts[self.etcd_host]).start().wait()
        self.addCleanup(lambda: self.etcd.stop())
        for index in (1, 2):
            self.begin_candidate(index)
            self.await_log(index, "leads, epoch" if index == 1 else "stands by")

    def begin_candidate(self, index):
        host = self.hosts[index]
        self.candidates[index] = self.launch(host, [
            harness.DDPRUND, "--insecure", f"--listen={host.address}:{PORT}", f"--ha-lease={LEASE}s",
            f"--ha-name={host.address}:{PORT}", f"--ha=etcd://{self.etcd.endpoint}"])

    def agent(self, index, *flags, **environment):
        endpoints = ",".join(f"{self.hosts[i].address}:{PORT}" for i in (1, 2))
        return self.launch(self.hosts[index], [
            harness.DDPRUN, f"--rdzv-endpoint={endpoints}", "--rdzv-id=job", "--shutdown-timeout=5", *flags,
            fault_case.WORKER, self.meet], **environment)

    def await_log(self, index, text, seconds=PATIENCE):
        wait_until(lambda: text in self.output_of(self.candidates[index]), f"ddprund {index}: {text}", seconds)

    def said_at(self, index, text):
        """Returns the time with which the log line that contains `text` begins."""
        return next(line.split()[0] for line in self.output_of(self.candidates[index]).splitlines() if text in line)

    def leader(self):
        """Returns the index of the host that the leader's key in etcd names; None: there is no leader."""
        done = self.hosts[0].run([sys.executable, "-c", GET_LEADER, self.etcd.endpoint], capture_output=True,
                                 text=True, check=True)
        found = json.loads(done.stdout).get("kvs")
        if not found:
            return None
        address = base64.b64decode(found[0]["value"]).decode().rpartition(":")[0]
        return next(i for i in (1, 2) if self.hosts[i].address == address)

    def await_leader(self, index=None):
        """Waits for a leader and returns its index. Another one may lead by now."""
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
        self.etcd.stop()
        self.check_clean()

    def pause(self):
        fault_case.time.sleep(self.random.uniform(0, LONGEST_PAUSE))


class CutOff(HaCase):
    def test_a_leader_that_alone_has_lost_etcd_lets_its_agents_go(self):
        """The agents stay connected to the old leader. It may not lead, and says so before another one leads."""
        before = self.last_round()
        self.hosts[1].run(["ip", "route", "add", "blackhole", self.etcd.address], check=True)
        self.await_log(2, "leads, epoch", LEASE + PATIENCE)
        self.await_log(1, "leads no more", LEASE + PATIENCE)
        self.assertLess(self.said_at(1, "leads no more"), self.said_at(2, "leads, epoch"))
        self.await_log(2, "is back", PATIENCE)
        self.assertEqual(self.last_round(), before)
        self.hosts[1].run(["ip", "route", "del", "blackhole", self.etcd.address], check=True)
        self.await_log(1, "stands by: " + self.hosts[2].address, PATIENCE)
        self.check_one_rank_0()
        self.assertEqual(self.last_round(), before)
        self.end()


class CutOffFromEtcdAlone(HaCase):
    num_hosts = 4
    etcd_host = 3

    def test_a_round_that_ends_while_a_leader_has_lost_etcd_is_decided_by_the_next_one_alone(self):
        before = self.last_round()
        self.hosts[1].run(["ip", "route", "add", "blackhole", self.etcd.address], check=True)
        self.kill(self.named(0, "steady_worker")[0])
        self.await_log(2, "leads, epoch", LEASE + PATIENCE)
        self.await_log(1, "leads no more", LEASE + PATIENCE)
        self.assertLess(self.said_at(1, "leads no more"), self.said_at(2, "leads, epoch"))
        self.await_round(after=before, world=6)
        self.hosts[1].run(["ip", "route", "del", "blackhole", self.etcd.address], check=True)
        self.await_log(1, "stands by: " + self.hosts[2].address, PATIENCE)
        self.check_one_rank_0()
        self.assertEqual(self.last_round(), before + 1)
        self.end()


class CutOffNode(HaCase):
    num_hosts = 4
    agent_hosts = (1, 2, 3)

    def test_a_node_that_reaches_the_old_leader_alone_is_no_second_job(self):
        """The old leader refuses the node, which is no silence. So the node's workers run on, and the others wait for
        them."""
        self.hosts[3].run(["ip", "route", "add", "blackhole", self.hosts[2].address], check=True)
        before = self.last_round()
        self.candidates[1].kill()
        self.candidates[1].wait()
        self.await_log(2, "it did not come back after the rendezvous was restarted", LEASE + 10 + PATIENCE)
        self.assertRegex(self.output_of(self.candidates[2]), r"its workers may run for \d+ s more")
        self.await_round(after=before, world=4, seconds=LOST + 5 + PATIENCE_AFTER_LOSS)
        self.check_one_rank_0()
        self.check_end(self.agents[2], {69}, seconds=PATIENCE)
        self.hosts[3].run(["ip", "route", "del", "blackhole", self.hosts[2].address], check=True)
        self.agents[2] = self.agent(3, *self.flags)
        self.begin_candidate(1)
        self.await_round(world=6, after=self.last_round(), seconds=60 + PATIENCE)
        self.end()


class Random(HaCase):
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
        """Waits until a round has all nodes. The node that came back last may wait beside the round, even for minutes
        after failed restarts for it (--on-join=restart). So this kills a worker, and the next round has that node."""
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
        self.candidates[index].kill()
        self.candidates[index].wait()
        if self.random.random() < 0.5:  # starts it again before its lease is over, or after
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


if __name__ == "__main__":
    if etcd.MISSING:
        skips.skip_all(etcd.MISSING)
    fault_case.main()
