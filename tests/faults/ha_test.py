#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Several ddprunds and an etcd on hosts of their own: leaders and standbys are killed, paused and cut
off at random moments, and so are agents and workers (several_leaders.py)."""
import base64
import json
import sys

import fault_case  # first: it says where the others are
import etcd
import skips
from fault_case import PATIENCE
from several_leaders import LEASE, LOST, PATIENCE_AFTER_LOSS, RandomHarm, TwoDdprunds


class HaCase(TwoDdprunds):
    """etcd on the first host, unless it is on another one."""

    etcd_host = 0

    def begin_candidates(self):
        self.etcd = etcd.Etcd(self.scratch(), self.hosts[self.etcd_host]).start().wait()
        self.addCleanup(lambda: self.etcd.stop())
        for index in (1, 2):
            self.begin_candidate(index)
            self.await_log(index, "leads, epoch" if index == 1 else "stands by")

    def begin_candidate(self, index):
        self.begin_ddprund(index, f"--ha=etcd://{self.etcd.endpoint}")

    def leader(self):
        """Whose name the leader's key has; None: nobody's."""
        done = self.hosts[0].run([sys.executable, "-c", GET_LEADER, self.etcd.endpoint], capture_output=True,
                                 text=True, check=True)
        found = json.loads(done.stdout).get("kvs")
        if not found:
            return None
        address = base64.b64decode(found[0]["value"]).decode().rpartition(":")[0]
        return next(i for i in (1, 2) if self.hosts[i].address == address)

    @staticmethod
    def goes_on_without(_):
        return True  # what one knows is etcd's

    def end_what_decides(self):
        self.etcd.stop()


GET_LEADER = """
import base64, sys, urllib.request
key = base64.b64encode(b"/ddprun/leader").decode()
request = urllib.request.Request("http://" + sys.argv[1] + "/v3/kv/range", b'{"key":"%s"}' % key.encode())
print(urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request, timeout=5).read().decode())
"""


class CutOff(HaCase):
    def test_a_leader_that_alone_has_lost_etcd_lets_its_agents_go(self):
        """They hear it all the time; it may not lead, and says so before another one does."""
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
        """Who led says "refused" there, which is no silence: its workers run on, and the others wait for that."""
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


class Random(HaCase, RandomHarm):
    pass


if __name__ == "__main__":
    if etcd.MISSING:
        skips.skip_all(etcd.MISSING)
    fault_case.main()
