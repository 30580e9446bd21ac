#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tests processes of different versions. ddprund reads the files of an older one. If two processes speak different
versions of a protocol, both sides print one line. A relay changes the version numbers on the way."""
import fnmatch
import json
import os
import shutil
import sqlite3
import struct

from rounds_case import RoundsCase, harness, wait_until  # import it first: it says where the other modules are
import raw_agent
import relay

AGENT = os.path.join(harness.BIN, "ddprun-agent")
GOLDEN = os.path.join(harness.SOURCE, "tests/rendezvous/journal/golden")


class UpgradeCase(RoundsCase):
    def changed(self, endpoint, old, new):
        """Returns the endpoint of a relay that changes `old` to `new`: one side seems to have another version."""
        between = relay.Relay(int(endpoint.rsplit(":", 1)[1]), words={old: new})
        self.addCleanup(between.close)
        self.addCleanup(lambda: self.assertGreater(between.num_changed, 0, f"nobody said {old}"))
        return f"127.0.0.1:{between.port}"

    def check_said_once(self, daemon, about, said):
        """Ends the daemon. Checks that exactly one line of its log has `about`, and that this line has `said`."""
        daemon.terminate()
        lines = [line for line in self.finish(daemon).stderr.splitlines() if about in line]
        self.assertEqual(len(lines), 1, lines)
        self.assertIn(said, lines[0])


class Versions(UpgradeCase):
    SPOKEN = b'"version":3,"oldest_version":1'

    def test_a_ddprun_of_another_version_is_one_line_on_both_sides(self):
        for versions, said in (
                (b'"version":9,"oldest_version":8', "speaks versions 8 to 9 of the control protocol, the rendezvous "
                                                    "versions 1 to 3: install a newer ddprund (rendezvous)"),
                (b'"version":0,"oldest_version":0', "speaks version 0 of the control protocol, the rendezvous "
                                                    "versions 1 to 3: install a newer ddprun (agent)")):
            with self.subTest(versions):
                daemon, endpoint = self.ddprund()
                done = self.ddprun(f"--rdzv-endpoint={self.changed(endpoint, self.SPOKEN, versions)}",
                                   "--rdzv-conf=is_host=0", "true")
                self.check_one_line(done, said)
                self.check_said_once(daemon, "version", f"refused an agent: the ddprun at 127.0.0.1 {said}")

    def test_an_older_ddprun_beside_a_new_one_is_a_job_of_both(self):
        """The job restarts, and its workers use the rendezvous' store."""
        _, endpoint = self.ddprund()
        old = self.changed(endpoint, self.SPOKEN, b'"version":1,"oldest_version":1')
        agents = [*self.agents_at(endpoint, "--store=proxy", "--max-restarts=1", count=1, failing=1),
                  *self.agents_at(old, "--store=proxy", "--max-restarts=1", count=1, failing=1)]
        self.wait_for_round(1)
        self.go(1)
        self.wait_for_round(2)
        self.end_well(agents)

    def test_a_newer_ddprun_that_speaks_this_version_too(self):
        _, endpoint = self.ddprund()
        newer = self.changed(endpoint, self.SPOKEN, b'"version":9,"oldest_version":1')
        self.ddprun(f"--rdzv-endpoint={newer}", "--rdzv-conf=is_host=0", "true", code=0)

    def test_an_older_ddprund(self):
        """The one ddprund knows only version 1. The other one chooses a version that was not offered."""
        _, endpoint = self.ddprund()
        said = b'"type":"welcome","seq":0,"ack":0,"version":3'
        for version, code in ((b"1", 0), (b"4", 2)):
            with self.subTest(version):
                there = self.changed(endpoint, said, said[:-1] + version)
                done = self.ddprun(f"--rdzv-endpoint={there}", "--rdzv-conf=is_host=0", "true", code=code)
                if code:
                    self.check_one_line(done, "speaks version 4 of the control protocol, this ddprun 3")

    def test_a_standing_agent_of_another_version_is_one_line_on_both_sides(self):
        for versions, said in (
                (b'"protocol":9,"oldest_protocol":8', "it speaks versions 8 to 9 of the standing agents' protocol, "
                                                      "this ddprund version 1: install a newer ddprund"),
                (b'"protocol":0,"oldest_protocol":0', "it speaks version 0 of the standing agents' protocol, "
                                                      "this ddprund version 1: install a newer ddprun-agent")):
            with self.subTest(versions):
                daemon, endpoint = self.ddprund()
                there = self.changed(endpoint, b'"protocol":1,"oldest_protocol":1', versions)
                agent = self.start(f"--rdzv-endpoint={there}", "--name=n1", f"--log-dir={self.meet}", program=AGENT)
                done = self.finish(agent, code=2)
                self.assertEqual(sum(said in line for line in done.stderr.splitlines()), 1, done.text)
                self.check_said_once(daemon, "speaks", said)

    def test_a_standing_agent_obeys_no_ddprund_of_another_version(self):
        _, endpoint = self.ddprund()
        said = b'"type":"welcome","protocol":1'
        there = self.changed(endpoint, said, said[:-1] + b"3")
        done = self.finish(self.start(f"--rdzv-endpoint={there}", "--name=n1", f"--log-dir={self.meet}", program=AGENT))
        self.assertEqual(done.returncode, 2, done.text)
        self.assertIn("speaks version 3 of the standing agents' protocol, this agent version 1", done.stderr)


class Journal(UpgradeCase):
    """Tests with the files of an older ddprund, with which a current one goes on."""

    def left_behind(self, golden):
        """Returns a new --state-dir that has the golden journal."""
        state = os.path.join(self.scratch(), "state")
        os.mkdir(state, 0o700)
        shutil.copyfile(os.path.join(GOLDEN, golden), os.path.join(state, "journal.db"))
        return state

    def serve(self, golden):
        state = self.left_behind(golden)
        journal = sqlite3.connect(os.path.join(state, "journal.db"))
        rows = dict(journal.execute("SELECT key, content FROM rows"))
        journal.close()
        daemon, endpoint = self.ddprund(f"--state-dir={state}")
        return rows, daemon, endpoint

    def page(self, what, endpoint, *more):
        done = self.ddprunctl(what, f"--rdzv-endpoint={endpoint}", "--json", *more, code=0)
        return json.loads(done.stdout)

    def come_back(self, rows, run_id, endpoint):
        """Connects the agents of a job, as its rows describe them, and returns them. Checks that each is welcome."""
        back = {}
        for key in fnmatch.filter(rows, "jobs/*/nodes/*"):
            node = json.loads(rows[key])
            join = json.loads(node["join"])
            if join["run_id"] != run_id:
                continue
            agent = raw_agent.RawAgent(endpoint)
            self.addCleanup(agent.socket.close)
            agent.tell({**join, "session": node["session"], "ack": node["channel"]["sent"]})
            self.assertEqual(agent.message("welcome")["session"], node["session"])
            back[node["node_rank"]] = agent
        return back

    def test_a_job_of_the_first_ddprund_that_kept_one_goes_on(self):
        rows, _, endpoint = self.serve("format1.db")
        jobs = {job["run_id"]: job for job in self.page("jobs", endpoint)["jobs"]}
        self.assertEqual({name: (job["phase"], job["round"]) for name, job in jobs.items()},
                         {"running": ("running", 2), "waiting": ("forming", 0)})
        self.assertEqual(sorted(self.come_back(rows, "running", endpoint)), [0, 1])
        self.assertEqual(list(self.come_back(rows, "waiting", endpoint)), [None])
        job = self.page("jobs", endpoint)["jobs"][0]
        self.assertEqual([node["connected"] for node in job["nodes"]], [True, True])

    def test_a_journal_of_a_pair_is_refused_each_time(self):
        state = self.left_behind("format1_pair.db")
        for _ in range(2):
            done = self.finish(self.start("--listen=127.0.0.1:0", f"--state-dir={state}", program=harness.DDPRUND))
            self.check_one_line(done, f"{state}/journal.db is of a ddprund with --standby or --standby-of, which are "
                                      "gone: let the ddprund that wrote it end its jobs, or give an empty --state-dir")

    def test_a_row_of_every_kind(self):
        """The journal has running and finished jobs, a store behind proxies, and gangs."""
        rows, daemon, endpoint = self.serve("format1_whole.db")
        jobs = self.page("jobs", endpoint)
        running = next(job for job in jobs["jobs"] if job["run_id"] == "running")
        self.assertEqual((running["phase"], running["round"]), ("running", 2))
        self.assertEqual({job["run_id"]: job["exit_code"] for job in jobs["finished"]}, {"succeeded": 0, "failed": 3})
        agents = self.come_back(rows, "running", endpoint)
        self.assertEqual(sorted(agents), [0, 1])
        self.assertEqual(self.get_through(agents[0], 2, b"/kept"), b"kept value")
        self.assertEqual(self.get_through(agents[1], 2, b"/here"), b"2")

        # The agent that ran a gang is now another process, so that gang is lost. The waiting gang begins.
        self.start(f"--rdzv-endpoint={endpoint}", "--name=n1", "--slots=1", f"--log-dir={self.meet}", program=AGENT)
        def gangs():
            return {gang["name"]: gang for gang in self.page("jobs", endpoint, "--to", "nodes")["jobs"]}
        wait_until(lambda: gangs()["echo"]["phase"] == "succeeded", "the gang that waited has run")
        done = self.ddprunctl("logs", gangs()["echo"]["id"], f"--rdzv-endpoint={endpoint}")
        self.assertIn("it ran", done.stdout, done.text)
        self.assertEqual(gangs()["sleep"]["phase"], "failed")
        self.assertIsNone(daemon.poll())

    def get_through(self, agent, number, key):
        """Sends a GET of a worker through its node's proxy (docs/store-proxy.md). Returns the value."""
        def say(position, received, content=b""):
            agent.say(raw_agent.BINARY, struct.pack("<3sBQQQ", b"dps", 1, number, position, received) + content)
        say(0, 0)  # both sides say how many bytes they have received
        received, said = None, b""
        while len(said) < 13 or len(said) < 13 + struct.unpack("<Q", said[5:13])[0]:
            kind, content = agent.hear()
            if kind != raw_agent.BINARY:
                continue
            magic, version, its_round, position, has = struct.unpack("<3sBQQQ", content[:28])
            self.assertEqual((magic, version, its_round), (b"dps", 1, number))
            if received is None:
                # First come the replies that the old worker has not received.
                received = position + len(content) - 28
                request = b"\3" + struct.pack("<Q", len(key)) + key
                say(has, received, struct.pack("<IBQ", 1000, 0, len(request)) + request)
                continue
            said += content[28:]
        connection, kind, size = struct.unpack("<IBQ", said[:13])
        self.assertEqual((connection, kind), (1000, 0))
        return said[13 + 8:13 + size]


if __name__ == "__main__":
    harness.main()
