#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A pair of ddprunds (--standby, --standby-of) on hosts of their own: each of the two is killed, paused
and cut off at random moments, and so are agents and workers (several_leaders.py)."""
import itertools
import json
import os
import subprocess
import sys

import fault_case
from fault_case import PATIENCE, PORT, wait_until
from several_leaders import LEASE, LOST, PATIENCE_AFTER_LOSS, RandomHarm, TwoDdprunds

# Each line of its input is a URL; for each one a line with the page, empty where there is none.
FETCH_PAGES = """
import http.client, sys, urllib.request
opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
for url in sys.stdin:
    try:
        page = opener.open(url.strip(), timeout=2).read().decode()
    except (OSError, http.client.HTTPException):
        page = ""
    print(page.strip(), flush=True)
"""


class PairCase(TwoDdprunds):
    def begin_candidates(self):
        self.fetchers = {}
        self.states = {index: os.path.join(self.scratch(), "state") for index in (1, 2)}
        for index in (1, 2):
            self.begin_candidate(index)
        self.await_sync(1)

    def begin_candidate(self, index):
        flag = "--standby" if index == 1 else "--standby-of"
        self.begin_ddprund(index, f"{flag}={self.hosts[3 - index].address}:{PORT}",
                           f"--state-dir={self.states[index]}")

    def page(self, index, path):
        """None: it doesn't answer, or not with that page."""
        if index not in self.fetchers:
            self.fetchers[index] = self.hosts[index].popen([sys.executable, "-c", FETCH_PAGES], text=True,
                                                           stdin=subprocess.PIPE, stdout=subprocess.PIPE)
            self.addCleanup(self.fetchers[index].communicate)
        self.fetchers[index].stdin.write(f"http://{self.hosts[index].address}:{PORT}{path}\n")
        self.fetchers[index].stdin.flush()
        text = self.fetchers[index].stdout.readline()
        return json.loads(text) if text.strip() else None

    def status(self, index):
        return self.page(index, "/v1/status")

    def leads(self, index):
        status = self.status(index)
        return status is not None and status["role"] == "leader"

    def leader(self):
        return next((index for index in (1, 2) if self.leads(index)), None)

    def goes_on_without(self, index):
        """The other one leads, or has all that this one has told anybody."""
        status = self.status(index)
        return status is not None and (status["role"] == "standby" or status["peer"]["in_sync"])

    def end_what_decides(self):
        for fetcher in self.fetchers.values():
            fetcher.communicate(timeout=PATIENCE)

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
    """Who takes over needs more than half of the nodes of a job's live round, as it was before the last batch of rows and
    after it (docs/ha-standby.md, "Why no job is decided by two"). So after a node or a ddprund was lost, no node and no
    leader is harmed before a round without the lost node works, and all three are there. That need not be a larger
    round: --on-join=restart may leave a node that came back waiting beside it for minutes."""
    is_settled = True

    def await_nodes(self):
        if not self.is_settled:
            try:
                wait_until(self.is_whole, "a round works, and all nodes are there", PATIENCE_AFTER_LOSS)
            except AssertionError as late:
                self.fail(f"seed {self.seed}: {late}; {self.jobs(1)} {self.jobs(2)}\n{self.all_said()}")
        self.is_settled = False

    def is_whole(self):
        return any(job["phase"] == "running" and job["round"] in self.rounds() and
                   [node["connected"] for node in job["nodes"]] == [True] * len(self.agents)
                   for job in itertools.chain.from_iterable(map(self.jobs, (1, 2))))

    def jobs(self, index):
        """As its standby has them, too, if that is in sync: the page is answered then."""
        return (self.page(index, "/v1/jobs") or {"jobs": []})["jobs"]

    def harm_agent(self):
        self.await_nodes()
        super().harm_agent()

    def harm_leader(self):
        self.await_nodes()
        super().harm_leader()

    def harm_standby(self):
        self.is_settled = False  # its leader begins a new term
        super().harm_standby()

    def harm_paused_leader(self):
        self.await_nodes()
        super().harm_paused_leader()


if __name__ == "__main__":
    fault_case.main()
