#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tests ddprund --ha: several ddprunds and a real etcd. Jobs go on under any leader, and no worker notices."""
import base64
import collections
import os
import random
import re
import socket
import ssl
import sys
import time

from several_daemons import LEASE, PATIENCE, Member, SeveralDaemons, harness, wait_until
import etcd
import relay
import seeds
import skips


# A worker that stores 60 MB, reads their number back and prints it.
LARGE_VALUE = r"""
import os, socket, struct
store = socket.create_connection((os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])), 60)
string = lambda text: struct.pack("<Q", len(text)) + text
store.sendall(b"\0" + struct.pack("<I", 0x3C85F7CE) + b"\1" + string(b"/large") + string(bytes(60_000_000)))
store.sendall(b"\4" + string(b"/size") + struct.pack("<q", 60_000_000))
print(struct.unpack("<q", store.recv(8, socket.MSG_WAITALL))[0])
"""


class HighAvailability(SeveralDaemons):
    lease = LEASE

    def setUp(self):
        super().setUp()
        self.etcd = etcd.Etcd(self.scratch()).start().wait()
        self.addCleanup(lambda: self.etcd.stop())
        self.endpoint = self.etcd.endpoint  # ddprunds look for etcd there

    def flags_of(self, member):
        return [f"--ha=etcd://{self.endpoint}/test", f"--ha-name={member.name}:29400",
                f"--ha-lease={self.lease}s"]

    def group(self, number=2, *flags):
        """Starts `number` ddprunds, of which the first one leads."""
        first = Member(self, "c0", *flags)
        wait_until(lambda: first.role() == "leader", "the first one leads", 30)
        others = [Member(self, f"c{i}", *flags) for i in range(1, number)]
        for other in others:
            wait_until(lambda: other.role() == "standby", "the others stand by", 30)
            self.assertEqual(other.readiness(), (503, b"not ready: it stands by\n"))
        self.assertEqual(first.readiness(), (200, b"ok\n"))
        return [first, *others]

    def test_the_leader_is_killed_and_no_worker_notices(self):
        first, second = self.group()
        agents = self.agents([first, second])
        pids = self.wait_for_round(1)
        first.kill()
        self.wait_for_agents(second, LEASE + PATIENCE)
        first.start()
        wait_until(lambda: (first.get("/v1/status") or {}).get("leader") == "c1:29400", "it knows who leads")
        self.check_end(agents, pids)

    def test_the_leader_is_killed_and_the_job_goes_on_over_tls_with_the_next_one(self):
        certs = self.certs()
        token = f"--token-file={self.token()}"
        flags = [*self.tls_server(certs), token]
        members = []
        for name, says in (("c0", "leads, epoch"), ("c1", "stands by: c0:29400 leads")):
            members.append(Member(self, name, *flags))
            wait_until(lambda: says in members[-1].log(), f"{name}: {says}", 30)
        agents = self.agents(members, token, f"--tls-ca={certs}/ca.pem")
        pids = self.wait_for_round(1)
        members[0].kill()
        wait_until(lambda: "leads, epoch" in members[1].log(), "the next one leads", 30)
        self.check_end(agents, pids)

    def ask(self, member, authority, path, *certificate, over_tls=True):
        """Returns the answer's header; "": the connection was closed without an answer."""
        context = ssl.create_default_context(cafile=f"{authority}/ca.pem")
        if certificate:
            context.load_cert_chain(*certificate)
        with socket.create_connection(("127.0.0.1", member.port), 10) as plain:
            try:
                with context.wrap_socket(plain, server_hostname="localhost") if over_tls else plain as asked:
                    asked.sendall(f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
                    return asked.recv(4096).decode().partition("\r\n\r\n")[0].lower()
            except OSError:
                return ""

    def test_a_standby_that_asks_for_certificates_tells_nobody_else_who_leads(self):
        """A standby that asks for no certificate tells everybody."""
        certs, stranger = self.certs(), self.certs()
        tls = self.tls_server(certs)
        first = Member(self, "c0", *tls)
        wait_until(lambda: "leads, epoch" in first.log(), "the first one leads", 30)
        closed = Member(self, "c1", *tls, f"--tls-ca={certs}/ca.pem", "--tls-verify-client")
        open_one = Member(self, "c2", *tls)
        for each in (closed, open_one):
            wait_until(lambda: "stands by: c0:29400 leads" in each.log(), f"{each.name} stands by", 30)
        with_one = self.ask(closed, certs, "/v1/jobs", f"{certs}/client.pem", f"{certs}/client.key")
        self.assertIn(" 503 ", with_one)
        self.assertIn("ddprun-standby: c0:29400", with_one)
        for path in ("/v1/jobs", "/v1/agent", "/v1/status"):
            with self.subTest(path=path):
                self.assertEqual(self.ask(closed, certs, path), "")
                strangers = f"{stranger}/client.pem", f"{stranger}/client.key"
                self.assertEqual(self.ask(closed, certs, path, *strangers), "")
                plain = self.ask(closed, certs, path, over_tls=False)
                self.assertIn(" 426 ", plain)
                self.assertNotIn("ddprun-standby", plain)
        self.assertIn("ddprun-standby: c0:29400", self.ask(open_one, certs, "/v1/jobs"))

    def test_a_leader_that_is_stopped_gives_it_back_before_its_lease_ends(self):
        self.lease = 60
        first, second = self.group()
        agents = self.agents([first, second])
        pids = self.wait_for_round(1)
        first.process.terminate()
        self.assertEqual(first.process.wait(20), 0)
        self.wait_for_agents(second)
        self.assertIn("another ddprund goes on with: job", first.log())
        self.check_end(agents, pids)

    def test_a_paused_leader_decides_nothing_any_more(self):
        """The leader is paused for longer than its lease, while a round ends. Only the other one decides."""
        first, second = self.group()
        agents = self.agents([first, second], "--max-restarts=1", failing=1)
        pids = self.wait_for_round(1)
        first.pause()
        self.wait_for_agents(second)
        self.assertEqual(self.pids(1), pids)
        for pid in pids.values():
            os.kill(pid, 0)  # no worker was stopped, because the agents left in time
        self.go(1)
        self.wait_for_round(2)
        first.go_on()
        wait_until(lambda: first.role() == "standby", "it stands by")
        self.assertIn("leads no more", first.log())
        self.end_well(agents)
        self.assertEqual(self.pids(3), {})

    def test_standbys_come_and_go(self):
        first, second = self.group()
        agents = self.agents([first, second])
        pids = self.wait_for_round(1)
        for _ in range(2):
            second.kill()
            second.start()
            wait_until(lambda: second.role() == "standby", "it stands by")
        self.assertEqual(first.role(), "leader")
        self.check_end(agents, pids)

    def test_an_etcd_that_is_away_for_less_than_the_lease_costs_nobody_the_lead(self):
        self.lease = 15
        first, second = self.group()
        agents = self.agents([first, second])
        pids = self.wait_for_round(1)
        self.etcd.kill()
        # The leader notices at a write, or at the lease's renewal, every 5 s.
        wait_until(lambda: re.search("(?i)connection refused|no answer", first.log()), "it is missed")
        self.etcd.start().wait()
        wait_until(lambda: re.search("answers again|is written again", first.log()), "it is found again")
        self.assertEqual((first.role(), second.role()), ("leader", "standby"))
        self.assertNotIn("leads no more", first.log())
        self.check_end(agents, pids)

    def test_etcd_is_away_for_longer_than_the_lease(self):
        first, second = self.group()
        agents = self.agents([first, second])
        pids = self.wait_for_round(1)
        self.etcd.kill()
        wait_until(lambda: "leads no more" in first.log(), "the first one notices")
        self.etcd.start().wait()
        wait_until(lambda: "leader" in (first.role(), second.role()), "one of them leads", 30)
        self.wait_for_agents(first if first.role() == "leader" else second, 30)
        self.check_end(agents, pids)

    def test_etcd_is_killed_and_started_again_while_rounds_end(self):
        """No agent hears of a round that ends meanwhile. Later the old leader or the next one decides it, once."""
        group = self.group()
        agents = self.agents(group, "--max-restarts=2", failing=2)
        pids = {1: self.wait_for_round(1)}
        self.etcd.kill()
        self.go(1)
        wait_until(lambda: "connection refused" in group[0].log().lower(), "it can't write what it has decided")
        self.assertEqual((self.pids(1), self.pids(2)), (pids[1], {}))
        self.etcd.start().wait()
        pids[2] = self.wait_for_round(2)

        led = next(each for each in group if each.role() == "leader")
        killed, said = time.monotonic(), led.log().count("leads no more")
        self.etcd.kill()
        self.go(2)
        wait_until(lambda: led.log().count("leads no more") > said, "it has let go of its lease", LEASE + PATIENCE)
        time.sleep(max(0, killed + LEASE + 1.5 - time.monotonic()))  # the length of the outage
        self.assertEqual([each.role() for each in group], ["standby", "standby"])
        self.assertEqual((self.pids(1), self.pids(2), self.pids(3)), (pids[1], pids[2], {}))
        self.etcd.start().wait()
        self.wait_for_round(3)
        self.check_rounds(agents, group, 3)

    def test_etcd_is_slow(self):
        """The lease outlives the pause. Decisions wait, and are made afterwards."""
        first, second = self.group()
        agents = self.agents([first, second], "--max-restarts=1", failing=1)
        self.wait_for_round(1)
        self.etcd.pause()
        self.go(1)
        time.sleep(1)
        self.assertEqual(self.pids(2), {})  # nobody was told
        self.etcd.go_on()
        self.wait_for_round(2)
        self.end_well(agents)
        self.assertEqual(first.log().count("leads, epoch") + second.log().count("leads, epoch"), 1)

    def test_etcd_stands_still_for_longer_than_the_lease_while_a_round_ends(self):
        """Only the leader after the pause decides."""
        group = self.group()
        agents = self.agents(group, "--max-restarts=1", failing=1)
        pids = self.wait_for_round(1)
        paused = time.monotonic()
        self.etcd.pause()
        self.go(1)
        wait_until(lambda: "leads no more" in group[0].log(), "it has let go of what it can't renew", LEASE + PATIENCE)
        time.sleep(max(0, paused + LEASE + 1.5 - time.monotonic()))  # the length of the pause
        self.assertEqual([each.role() for each in group], ["standby", "standby"])
        self.assertEqual((self.pids(1), self.pids(2)), (pids, {}))  # nobody was told
        self.etcd.go_on()
        self.wait_for_round(2)
        self.check_rounds(agents, group, 2)

    def test_each_answer_of_etcd_takes_300_ms(self):
        """A round fails, and the leader is killed in the next one. Decisions take longer, and each is made once."""
        between = relay.Relay(self.etcd.port, late=0.15)
        self.addCleanup(between.close)
        self.endpoint = f"127.0.0.1:{between.port}"
        group = self.group()
        agents = self.agents(group, "--max-restarts=2", failing=2)
        self.wait_for_round(1)
        self.go(1)
        self.wait_for_round(2)
        self.assertEqual(sum(each.log().count("leads, epoch") for each in group), 1)  # the lease was renewed in time
        self.go(2)
        group[0].kill()
        self.wait_for_round(3)
        self.check_rounds(agents, group[1:], 3)

    def check_rounds(self, agents, group, last):
        """Checks that the job succeeds in round `last`, each rank of each round ran once, and one daemon leads."""
        self.go()
        for agent in agents:
            done = self.finish(agent)
            self.assertEqual(done.returncode, 0, done.text + "".join(each.log() for each in group))
        for number in range(1, last + 1):
            self.assertEqual(len(self.pids(number)), 4, f"round {number}")
        self.assertEqual(self.pids(last + 1), {})
        self.assertEqual([each.role() for each in group].count("leader"), 1)

    def blobs(self):
        """The number of parts that etcd has of each large content, by its id."""
        ask = {name: base64.b64encode(text).decode() for name, text in
               (("key", b"/test/blobs/"), ("range_end", b"/test/blobs0"))}
        keys = self.etcd.call("/v3/kv/range", keys_only=True, **ask).get("kvs", [])
        return collections.Counter(base64.b64decode(each["key"]).split(b"/")[3] for each in keys)

    def test_a_store_of_60_mb_does_not_hold_up_another_job(self):
        """Its copy is being written while the other job begins and ends."""
        leader, = self.group(1)
        large = self.start(f"--rdzv-endpoint=127.0.0.1:{leader.port}", "--rdzv-id=large", "--store=proxy", "--no-python",
                           sys.executable, "-c", LARGE_VALUE)

        def copies():  # one of a log has a part alone
            return {each for each, parts in self.blobs().items() if parts >= 8}
        wait_until(copies, "an earlier copy is there", 60)
        earlier = copies()
        wait_until(lambda: len(copies()) >= 2, "the last copy is being written", 60)
        self.ddprun(f"--rdzv-endpoint=127.0.0.1:{leader.port}", "--rdzv-id=other", "true", code=0)
        self.assertLessEqual(earlier, copies())  # it goes when the last copy is whole
        self.assertEqual(self.finish(large, code=0).stdout, "60000000\n")
        self.assertNotIn("has not answered", leader.log())

    def test_etcd_that_takes_nothing_more_is_said(self):
        first, = self.group(1)
        agents = self.agents([first])
        pids = self.wait_for_round(1)
        self.etcd.call("/v3/maintenance/alarm", action="ACTIVATE", memberID="0", alarm="NOSPACE")
        self.go()
        wait_until(lambda: "database space exceeded" in first.log(), "it says why nothing is decided")
        self.assertEqual(first.get("/v1/status")["stores"]["proxied"]["max_bytes"], 512 << 20)
        self.assertTrue(first.get("/v1/status")["journal"]["jobs_wait"])
        self.etcd.call("/v3/maintenance/alarm", action="DEACTIVATE", memberID="0", alarm="NOSPACE")
        self.check_end(agents, pids)

    def test_each_request_counts_once_while_the_leader_is_killed_again_and_again(self):
        one, other = self.group()
        agents = self.counting_agents([one, other])
        for _ in range(3):
            one.kill()
            self.wait_for_requests(other)
            one.start()
            wait_until(lambda: one.role() == "standby", "it stands by", 30)
            one, other = other, one
        self.check_count(agents)

    def test_each_request_counts_once_while_the_leader_is_paused(self):
        """The paused leader has requests that it has not answered. It answers none; the other one carries them out."""
        one, other = self.group()
        agents = self.counting_agents([one, other])
        one.pause()
        self.wait_for_requests(other)
        one.go_on()
        wait_until(lambda: one.role() == "standby", "it stands by", 30)
        self.check_count(agents)

    def test_kills_and_pauses_at_random_moments(self):
        """Three rounds fail and are restarted while leaders and standbys are killed and paused. Each rank of each round
        runs once."""
        moments = random.Random(seeds.seed())
        group = self.group(3)
        agents = self.agents(group, "--max-restarts=3", failing=3)
        self.wait_for_round(1)
        for number in (1, 2, 3, 4):
            self.go(number)
            time.sleep(moments.uniform(0, 0.05))
            victim = moments.choice(group)
            if moments.random() < 0.5:
                victim.kill()
                time.sleep(moments.uniform(0, LEASE + 2))
                victim.start()
            else:
                victim.pause()
                time.sleep(moments.uniform(0, LEASE + 2))
                victim.go_on()
            if number < 4:
                self.wait_for_round(number + 1)
        for agent in agents:
            done = self.finish(agent)
            self.assertEqual(done.returncode, 0, done.text + "".join(each.log() for each in group))
        for number in (1, 2, 3, 4):
            self.assertEqual(len(self.pids(number)), 4, f"round {number}")
        self.assertEqual(self.pids(5), {})

    def test_bad_flags(self):
        for flags, part in (
                (["--ha=zookeeper://a"], "does not begin with etcd://"),
                (["--ha=etcd://"], "is no HOST or HOST:PORT"),
                (["--ha=etcd://a,a"], "is named twice"),
                (["--ha=etcd://a", "--state-dir=/tmp/x"], "leave one of the two out"),
                (["--ha=etcd://a", "--ha-lease=1s"], "is not 2s to 60s"),
                (["--ha=etcd://a", "--ha-name=x"], "is not HOST:PORT"),
                (["--ha-lease=3s"], "is for --ha; give that, too"),
                (["--ha=etcd://a", "--ha-ca=/nowhere"], "/nowhere")):
            done = self.finish(self.start(*flags, "--listen=127.0.0.1:0", program=harness.DDPRUND))
            self.check_one_line(done, part)

    def test_no_etcd_is_said_and_it_stands_by(self):
        self.etcd.kill()
        lonely = Member(self, "c0")
        wait_until(lambda: re.search(r"warning: .*connection refused.*asked again", lonely.log(), re.I),
                   "it says that no etcd answers")
        self.assertEqual(lonely.role(), "standby")
        self.assertIn("onnection refused", lonely.get("/v1/status")["etcd_trouble"])
        self.etcd.start().wait()
        wait_until(lambda: lonely.role() == "leader", "it leads", 30)
        self.assertNotIn("etcd_trouble", lonely.get("/v1/status"))


if __name__ == "__main__":
    if etcd.MISSING:
        skips.skip_all(etcd.MISSING)
    harness.main()
