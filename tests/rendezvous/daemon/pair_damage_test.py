#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A pair of ddprund, and the journal of one of them loses rows: nobody leads with what is left of it, however
often it is started, until a person decides so (docs/ha-standby.md, "A damaged journal")."""
import glob
import os
import sqlite3
import subprocess
import time

from pair_test import PairOfDaemons, harness
from several_daemons import LEASE, wait_until

SAYS = "this one's journal was damaged and lacks jobs, and waits for it"


class PairDamage(PairOfDaemons):
    def change(self, name, *statements):
        """In the journal of one that doesn't run."""
        database = sqlite3.connect(os.path.join(self.states[name], "journal.db"))
        with database:
            for statement in statements:
                self.assertEqual(database.execute(statement).rowcount, 1, statement)
        database.close()

    def damage(self, name):
        """A bit of one row of its job."""
        self.change(name, "UPDATE rows SET content = content || ' ' WHERE key = 'jobs/1/state'")

    def tear(self, name, keep):
        """The later part of the file is gone."""
        sqlite3.connect(os.path.join(self.states[name], "journal.db")).execute("PRAGMA wal_checkpoint(TRUNCATE)")
        path = os.path.join(self.states[name], "journal.db")
        os.truncate(path, int(os.path.getsize(path) * keep))

    def cut_log(self, name):
        """What SQLite takes for commits that never were."""
        path = os.path.join(self.states[name], "journal.db-wal")
        os.truncate(path, os.path.getsize(path) - 5000)

    def both_killed(self):
        """A job runs; who led, its standby, the agents and their workers."""
        a, b = self.pair()
        agents = self.agents([a, b])
        pids = self.wait_for_round(1)
        self.kill_both(a, b)
        return a, b, agents, pids

    @staticmethod
    def kill_both(a, b):
        """At once: neither begins another term."""
        for each in (b, a):
            each.pause()
        for each in (a, b):
            each.kill()

    def check_waits(self, member, times=1):
        wait_until(lambda: member.log().count(SAYS) == times, f"{member.name} says so")
        self.assertEqual(member.role(), "standby")
        self.assertIn(SAYS, member.get("/v1/status")["peer"]["says"])

    def check_goes_on(self, leader, standby, agents, pids):
        self.wait_for_agents(leader)
        self.wait_for_sync(standby)
        self.assertEqual((leader.role(), standby.role()), ("leader", "standby"))
        self.check_end(agents, pids)

    def test_a_leader_is_damaged_while_its_standby_goes_on(self):
        a, b = self.pair()
        agents = self.agents([a, b])
        pids = self.wait_for_round(1)
        a.kill()
        self.damage("a")
        a.start()
        self.check_goes_on(b, a, agents, pids)
        self.assertIn('row "jobs/1/state" was changed on the disk', a.log())

    def test_a_damaged_leader_alone_waits_however_often_it_is_started(self):
        a, b, agents, pids = self.both_killed()
        self.damage("a")
        a.start()
        self.check_waits(a)
        time.sleep(LEASE + 1)  # for so long it must not lead: nothing tells when it doesn't
        self.assertEqual(a.role(), "standby")
        a.kill()
        a.start()
        self.check_waits(a, times=2)
        self.stop(a)
        a.start()
        self.check_waits(a, times=3)
        self.assertEqual(len(glob.glob(self.states["a"] + "/journal.db.damaged-*Z")), 1)
        b.start()
        self.check_goes_on(b, a, agents, pids)
        # It has all again.
        self.assertEqual(a.log().count(SAYS), 3)

    def test_a_damaged_standby_alone_waits_and_copies_again(self):
        a, b, agents, pids = self.both_killed()
        self.damage("b")
        b.start()
        self.check_waits(b)
        time.sleep(LEASE + 1)  # then one that is in sync leads
        self.assertEqual(b.role(), "standby")
        a.start()
        self.check_goes_on(a, b, agents, pids)

    def test_a_log_that_lost_its_end_is_no_leader_s(self):
        a, b, agents, pids = self.both_killed()
        self.cut_log("a")
        a.start()
        self.check_waits(a)
        self.assertIn("commits of the journal are missing", a.log())
        a.kill()
        a.start()
        self.check_waits(a, times=2)
        b.start()
        self.check_goes_on(b, a, agents, pids)

    def test_a_torn_file_is_no_leader_s(self):
        for keep in (0.6, 0):
            with self.subTest(keep=keep):
                a, b, agents, pids = self.both_killed()
                self.tear("a", keep)
                a.start()
                self.check_waits(a)
                b.start()
                self.check_goes_on(b, a, agents, pids)
                self.doCleanups()
                self.setUp()

    def test_one_that_was_started_without_its_flag_first_waits_all_the_same(self):
        """It is refused, and was made anew by then."""
        a, b, agents, pids = self.both_killed()
        self.damage("a")
        done = subprocess.run([harness.DDPRUND, "--listen=127.0.0.1:0", f"--state-dir={self.states['a']}"],
                              capture_output=True, text=True, timeout=30)
        self.assertEqual(done.returncode, 2, done.stderr)
        self.assertIn("is of one of a pair", done.stderr)
        a.start()
        self.check_waits(a)
        b.start()
        self.check_goes_on(b, a, agents, pids)

    def test_after_its_machine_s_end_one_leaves_the_jobs_to_the_other_one(self):
        """Their nodes wait for longer than by default."""
        a, b = self.pair()
        agents = self.agents([a, b], "--rendezvous-lost-timeout=200")
        pids = self.wait_for_round(1)
        self.kill_both(a, b)
        path = os.path.join(self.states["a"], "lock")
        with open(path) as file:
            pid, commits, _, how, synced = file.read().split()
        self.write(self.states["a"], "lock", f"{pid} {commits} another-boot {how} {synced}\n")
        a.start()
        wait_until(lambda: "may not be on its disk: for 240 s the other one" in a.log(), "it says so")
        wait_until(lambda: a.role(), "it serves")
        time.sleep(LEASE + 1)  # then it would lead: nothing tells when it doesn't
        self.assertEqual(a.role(), "standby")
        b.start()
        self.check_goes_on(b, a, agents, pids)

    def test_both_are_damaged_and_a_person_decides(self):
        a, b, agents, pids = self.both_killed()
        bogus = "INSERT INTO rows VALUES('jobs/9/state', '{}', 1)"
        for name in "ab":
            self.change(name, bogus)
        a.start()
        b.start()
        for each, other in ((a, b), (b, a)):
            wait_until(lambda: f"{other.name}:29400 a part of them only: neither may lead" in each.log(), "it says so")
            self.assertIn("this one's journal was damaged and lacks jobs", each.get("/v1/status")["peer"]["says"])
        a.kill()
        self.change("a", "DELETE FROM rows WHERE key = 'leader/copy'")
        a.start()
        self.check_goes_on(a, b, agents, pids)


if __name__ == "__main__":
    harness.main()
