#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A pair of ddprunds (--standby, --standby-of) on hosts of their own: each of the two is killed, paused
and cut off at random moments, and so are agents and workers (several_leaders.py)."""
import json
import os
import sys

import fault_case
from fault_case import PATIENCE, PORT, wait_until
from several_leaders import LEASE, LOST, PATIENCE_AFTER_LOSS, RandomHarm, TwoDdprunds

GET_STATUS = """
import sys, urllib.request
opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
print(opener.open(sys.argv[1], timeout=2).read().decode())
"""


class PairCase(TwoDdprunds):
    def begin_candidates(self):
        self.states = {index: os.path.join(self.scratch(), "state") for index in (1, 2)}
        for index in (1, 2):
            self.begin_candidate(index)
        self.await_sync(1)

    def begin_candidate(self, index):
        flag = "--standby" if index == 1 else "--standby-of"
        self.begin_ddprund(index, f"{flag}={self.hosts[3 - index].address}:{PORT}",
                           f"--state-dir={self.states[index]}")

    def status(self, index):
        """None: it doesn't answer."""
        done = self.hosts[index].run([sys.executable, "-c", GET_STATUS,
                                      f"http://{self.hosts[index].address}:{PORT}/v1/status"],
                                     capture_output=True, text=True)
        return json.loads(done.stdout) if done.returncode == 0 else None

    def leads(self, index):
        status = self.status(index)
        return status is not None and status["role"] == "leader"

    def leader(self):
        return next((index for index in (1, 2) if self.leads(index)), None)

    def goes_on_without(self, index):
        """The other one leads, or has all that this one has told anybody."""
        status = self.status(index)
        return status is not None and (status["role"] == "standby" or status["peer"]["in_sync"])

    def await_sync(self, leader, seconds=PATIENCE):
        def is_in_sync():
            status = self.status(leader)
            return status is not None and status["role"] == "leader" and status["peer"]["in_sync"]
        wait_until(is_in_sync, f"ddprund {leader} is mirrored", seconds)


class CutOff(PairCase):
    def test_who_hear_each_other_no_more_never_both_decide(self):
        """The nodes on their hosts reach one of them each, the third node both: whose vote it gives first goes
        on with the job, and the other one's node is lost to it."""
        before = self.last_round()
        for index in (1, 2):
            self.hosts[index].run(["ip", "route", "add", "blackhole", self.hosts[3 - index].address], check=True)
        self.await_log(2, "leads, term 2", 2 * LEASE + PATIENCE)
        self.await_log(1, "begins a new term", LEASE + PATIENCE)
        self.await_round(after=before, world=4, seconds=LOST + 5 + PATIENCE_AFTER_LOSS)
        self.check_one_rank_0()
        wait_until(lambda: self.agents[1].poll() is not None or self.agents[2].poll() is not None,
                   "one node is lost", PATIENCE)
        lost = next(index for index in (1, 2) if self.agents[index].poll() is not None)
        self.check_end(self.agents[lost], {69})
        for index in (1, 2):
            self.hosts[index].run(["ip", "route", "del", "blackhole", self.hosts[3 - index].address], check=True)
        wait_until(lambda: [self.leads(1), self.leads(2)].count(True) == 1, "one of them leads", PATIENCE)
        self.await_sync(self.leader())
        self.agents[lost] = self.agent(lost, *self.flags)
        self.await_round(after=self.last_round(), world=6, seconds=60 + PATIENCE)
        self.end()


class Random(PairCase, RandomHarm):
    """Who takes over needs more than half of a job's nodes (docs/ha-standby.md, "What a pair can't know"): when one was
    killed, the next one, and who leads, have time until all are there again."""
    before_loss = None  # the last round before an agent was killed

    def await_nodes(self):
        if self.before_loss is not None:
            self.await_round(after=self.before_loss, world=6, seconds=60 + PATIENCE_AFTER_LOSS)
        self.before_loss = None

    def harm_agent(self):
        self.await_nodes()
        self.before_loss = self.last_round()
        super().harm_agent()

    def harm_candidate(self, index):
        self.await_nodes()
        super().harm_candidate(index)

    def harm_paused_leader(self):
        self.await_nodes()
        super().harm_paused_leader()


if __name__ == "__main__":
    fault_case.main()
