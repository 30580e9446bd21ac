#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""ddprund --standby and --standby-of: a pair without a third party; whoever of the two is lost, jobs go
on and no worker notices (docs/ha-standby.md)."""
import os
import random
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import time

from several_daemons import LEASE, PATIENCE, Member, SeveralDaemons, harness, wait_until

# What a standby says of itself, and what ends that.
IN_SYNC, NOT_ANY_MORE = "has all its jobs", ("is to lead", "lost its leader", "listening on")
CALLS = 2  # s: in these they call each other several times; nothing tells when


class PairOfDaemons(SeveralDaemons):
    extra = ()

    def setUp(self):
        super().setUp()
        self.ports = {name: harness.free_port() for name in "ab"}
        self.prefixes = {}
        self.states = {name: os.path.join(self.scratch(), "state") for name in "ab"}

    def check_says_once(self, member, *texts):
        """However often the other one calls."""
        for text in texts:
            self.assertEqual(member.log().count(text), 1, (text, member.log()))

    def flags_of(self, member):
        if member.name == "alone":
            return [f"--state-dir={self.states['b']}"]
        flag, other = ("--standby", "b") if member.name == "a" else ("--standby-of", "a")
        return [f"--state-dir={self.states[member.name]}", f"--ha-name={member.name}:29400",
                f"{flag}=127.0.0.1:{self.ports[other]}", f"--ha-lease={LEASE}s", *self.extra]

    def member(self, name):
        return Member(self, name, port=self.ports[name], prefix=self.prefixes.get(name, ()))

    def pair(self):
        """Both; a leads, b is in sync."""
        a, b = self.member("a"), self.member("b")
        self.wait_for_sync(b)
        self.assertEqual((a.role(), b.role()), ("leader", "standby"))
        self.assertEqual((a.readiness(), b.readiness()), ((200, b"ok\n"), (503, b"not ready: it stands by\n")))
        for each, other in ((a, b), (b, a)):
            peer = each.get("/v1/status")["peer"]
            self.assertEqual((peer["endpoint"], peer["in_sync"]), (f"127.0.0.1:{other.port}", True), peer)
            self.assertEqual(each.get("/v1/status")["journal"],
                             {"kept": True, "path": f"{self.states[each.name]}/journal.db"})
        return a, b

    def wait_for_sync(self, standby, seconds=30):
        def is_in_sync():
            said = standby.log()
            return IN_SYNC in said and said.rfind(IN_SYNC) > max(said.rfind(end) for end in NOT_ANY_MORE)
        wait_until(is_in_sync, f"{standby.name} has all", seconds)

    def wait_for_pair(self, members, seconds):
        """One of them leads, and the other one has all; whoever it is."""
        def is_one():
            pages = [each.get("/v1/status") for each in members]
            return (all(page and page["peer"]["in_sync"] for page in pages)
                    and sorted(page["role"] for page in pages) == ["leader", "standby"])
        wait_until(is_one, "they are a pair", seconds)

    def stop(self, member):
        member.process.terminate()
        self.assertEqual(member.process.wait(20), 0)


class Pair(PairOfDaemons):
    def test_the_leader_is_killed_and_no_worker_notices(self):
        """Its host is there and says that nothing listens: the standby need not wait."""
        a, b = self.pair()
        agents = self.agents([a, b])
        pids = self.wait_for_round(1)
        killed = time.monotonic()
        a.kill()
        self.wait_for_agents(b)
        self.assertLess(time.monotonic() - killed, PATIENCE)
        a.start()
        self.wait_for_sync(a)
        self.assertEqual(a.role(), "standby")
        self.check_end(agents, pids)

    def test_it_is_stopped_and_the_standby_leads_at_once(self):
        a, b = self.pair()
        agents = self.agents([a, b])
        pids = self.wait_for_round(1)
        stopped = time.monotonic()
        self.stop(a)
        self.wait_for_agents(b)
        self.assertLess(time.monotonic() - stopped, PATIENCE)
        self.assertIn("another ddprund goes on with: job", a.log())
        self.assertIn("has handed over", b.log())
        self.check_end(agents, pids)

    def test_the_standby_is_killed_and_the_leader_goes_on(self):
        a, b = self.pair()
        agents = self.agents([a, b])
        pids = self.wait_for_round(1)
        b.kill()
        wait_until(lambda: "begins a new term" in a.log(), "it knows")
        self.wait_for_agents(a)
        b.start()
        self.wait_for_sync(b)
        self.check_end(agents, pids)

    def test_a_standby_that_leaves_ends_no_term(self):
        a, b = self.pair()
        agents = self.agents([a, b])
        pids = self.wait_for_round(1)
        self.stop(b)
        b.start()
        self.wait_for_sync(b)
        self.assertNotIn("begins a new term", a.log())
        self.assertEqual(a.log().count("leads, term"), 1)
        self.check_end(agents, pids)

    def test_each_is_killed_in_turn(self):
        one, other = self.pair()
        agents = self.agents([one, other])
        pids = self.wait_for_round(1)
        for _ in range(5):
            one.kill()
            self.wait_for_agents(other)
            one.start()
            self.wait_for_sync(one)
            one, other = other, one
        self.check_end(agents, pids)

    def test_a_paused_leader_decides_nothing_any_more(self):
        """Paused for longer than its lease, while a round ends: the other one decides, and it alone."""
        a, b = self.pair()
        agents = self.agents([a, b], "--max-restarts=1", failing=1)
        pids = self.wait_for_round(1)
        a.pause()
        self.wait_for_agents(b)
        self.assertEqual(self.pids(1), pids)
        for pid in pids.values():
            os.kill(pid, 0)  # none was stopped: the agents left in time
        self.go(1)
        self.wait_for_round(2)
        a.go_on()
        self.wait_for_sync(a)
        self.assertIn("leads no more", a.log())
        self.go()
        for agent in agents:
            done = self.finish(agent)
            self.assertEqual(done.returncode, 0, done.text)
        self.assertEqual(self.pids(3), {})

    def test_both_are_killed_and_started_again(self):
        a, b = self.pair()
        agents = self.agents([a, b])
        pids = self.wait_for_round(1)
        a.kill()
        b.kill()
        a.start()
        b.start()
        leader = lambda: [each for each in (a, b) if each.role() == "leader"]  # noqa: E731
        wait_until(lambda: len(leader()) == 1, "one of them leads", 30)
        self.wait_for_agents(leader()[0])
        self.check_end(agents, pids)

    def test_a_leader_that_has_lost_its_disk_takes_no_jobs_along(self):
        """It begins anew as the first of the pair, with nothing; the standby has the jobs."""
        a, b = self.pair()
        agents = self.agents([a, b])
        pids = self.wait_for_round(1)
        b.kill()
        a.kill()
        shutil.rmtree(self.states["a"])
        a.start()
        b.start()
        self.wait_for_agents(b, 40)
        self.wait_for_sync(a, 40)
        self.check_end(agents, pids)

    def test_who_has_a_copy_alone_never_leads_and_says_so(self):
        a, b = self.pair()
        self.stop(b)  # and so what it has is not all any more
        a.kill()
        b.start()
        wait_until(lambda: "this one has not all of its jobs" in b.log(), "it says so")
        self.assertIn("this one has not all of its jobs", b.get("/v1/status")["peer"]["says"])
        self.assertFalse(b.get("/v1/status")["peer"]["answers"])
        time.sleep(LEASE + 1)  # for so long it must not lead: nothing tells when it doesn't
        self.assertEqual(b.role(), "standby")
        a.start()
        self.wait_for_sync(b)
        self.assertEqual(a.role(), "leader")

    def test_a_journal_of_before_the_pair_is_what_the_pair_goes_on_with(self):
        alone = Member(self, "alone", port=self.ports["b"])
        wait_until(lambda: alone.get("/v1/status"), "it serves")
        a_less = self.agents([alone])
        pids = self.wait_for_round(1)
        alone.kill()
        a, b = self.member("a"), self.member("b")
        self.wait_for_agents(b)
        self.wait_for_sync(a)
        self.check_end(a_less, pids)

    def test_a_ddprund_that_is_of_no_pair_refuses_its_directory(self):
        """The other one may have gone on with its jobs."""
        a, b = self.pair()
        a.kill()
        b.kill()
        for name in "ab":
            done = subprocess.run([harness.DDPRUND, "--listen=127.0.0.1:0", f"--state-dir={self.states[name]}"],
                                  capture_output=True, text=True, timeout=30)
            self.assertEqual((done.returncode, done.stderr.count("\n")), (2, 1), done.stderr)
            self.assertIn("is of one of a pair: start it with the --standby or --standby-of", done.stderr)
        a.start()
        b.start()
        self.wait_for_pair((a, b), 30)

    def test_a_leader_whose_disk_is_full_hands_over(self):
        disk, prefix = self.small_disk("4m")
        self.states["a"] = os.path.join(disk, "state")
        self.prefixes["a"] = prefix
        a, b = self.pair()
        agents = self.agents([a, b], "--max-restarts=1", failing=1)
        self.wait_for_round(1)
        inside = self.fill(a.process, disk)
        self.go(1)  # what is decided now can't be kept there
        self.wait_for_round(2)
        self.assertEqual((a.role(), b.role()), ("standby", "leader"))
        self.assertIn("its own disk fails", a.log())
        os.truncate(inside, 0)
        self.wait_for_sync(a, 100)
        self.go()
        for agent in agents:
            done = self.finish(agent)
            self.assertEqual(done.returncode, 0, done.text)

    def test_kills_stops_and_pauses_at_random_moments(self):
        """Three rounds fail and are restarted while one of the two is killed, stopped or paused: each
        round and rank once; at last one leads and the other one has all."""
        seed = int(os.environ.get("DDPRUN_FAULT_SEED") or random.SystemRandom().randrange(10**6))
        print(f"DDPRUN_FAULT_SEED={seed}", end=" ", file=sys.stderr, flush=True)
        moments = random.Random(seed)
        pair = self.pair()
        agents = self.agents(pair, "--max-restarts=3", failing=3)
        self.wait_for_round(1)
        for number in (1, 2, 3, 4):
            self.go(number)
            time.sleep(moments.uniform(0, 0.05))
            victim = moments.choice(pair)
            how = moments.choice(("kill", "stop", "pause"))
            if how == "kill":
                victim.kill()
            elif how == "stop":
                self.stop(victim)
            else:
                victim.pause()
            time.sleep(moments.uniform(0, LEASE + 2))
            victim.go_on() if how == "pause" else victim.start()
            if number == 4:
                break
            self.wait_for_round(number + 1)
            # Two faults at once may leave nobody who has all.
            self.wait_for_pair(pair, 100)
        for agent in agents:
            done = self.finish(agent)
            self.assertEqual(done.returncode, 0, done.text + "".join(each.log() for each in pair))
        for number in (1, 2, 3, 4):
            self.assertEqual(len(self.pids(number)), 4, f"round {number}")
        self.assertEqual(self.pids(5), {})

    def test_each_request_counts_once_while_the_leader_is_killed_again_and_again(self):
        one, other = self.pair()
        agents = self.counting_agents([one, other])
        for _ in range(4):
            one.kill()
            self.wait_for_requests(other)
            one.start()
            self.wait_for_sync(one)
            one, other = other, one
        self.check_count(agents)

    def test_each_request_counts_once_while_the_leader_is_paused(self):
        """What it had heard and not told is told by nobody, and done by the other one."""
        one, other = self.pair()
        agents = self.counting_agents([one, other])
        one.pause()
        self.wait_for_requests(other)
        one.go_on()
        self.wait_for_sync(one)
        self.check_count(agents)


class WithToken(PairOfDaemons):
    def setUp(self):
        super().setUp()
        self.token = self.token_of("a token for this test alone")
        self.extra = (f"--token-file={self.token}",)

    def token_of(self, text):
        return self.write(self.scratch(), "token", text, 0o600)

    def test_a_pair_with_a_token(self):
        a, b = self.member("a"), self.member("b")
        self.wait_for_sync(b)
        agents = self.agents([a, b], f"--token-file={self.token}")
        pids = self.wait_for_round(1)
        self.stop(a)
        self.check_end(agents, pids)

    def test_tokens_that_differ_are_said_once(self):
        a = self.member("a")
        other = self.token_of("another token than that")
        extra, self.extra = self.extra, (f"--token-file={other}",)
        b = self.member("b")
        differs = "its token is another one"
        for each in (a, b):
            wait_until(lambda: each.log().count(differs) >= 2, f"{each.name} says so")
        time.sleep(CALLS)
        for each in (a, b):
            self.check_says_once(each, f"refused this node: {differs}", "closed the connection of ddprund")
        b.kill()
        self.extra = extra
        b.start()
        self.wait_for_sync(b)

    def test_a_token_at_one_side_alone_is_said_once(self):
        a = self.member("a")
        self.extra = ()
        b = self.member("b")
        wait_until(lambda: "wants a token" in b.log(), "b says so")
        time.sleep(CALLS)
        self.check_says_once(b, "wants a token", "that has not said who it is")


class WithTls(PairOfDaemons):
    """Each is a server to its agents and to the other one, and the other one's client."""
    def setUp(self):
        super().setUp()
        self.authority = self.certs()
        self.extra = self.tls(self.authority)

    @staticmethod
    def tls(certs):
        return (*harness.Case.tls_server(certs), f"--tls-ca={certs}/ca.pem",
                "--tls-verify-client", f"--ha-ca={certs}/ca.pem", f"--ha-cert={certs}/client.pem",
                f"--ha-key={certs}/client.key")

    def test_a_pair_over_tls_that_asks_for_certificates(self):
        a, b = self.member("a"), self.member("b")
        self.wait_for_sync(b)
        agents = self.agents([a, b], f"--tls-ca={self.authority}/ca.pem", *self.tls_client(self.authority))
        pids = self.wait_for_round(1)
        a.kill()
        wait_until(lambda: "leads, term 2" in b.log(), "b leads", 20)
        self.check_end(agents, pids)

    def test_an_authority_that_the_other_one_does_not_know_is_named(self):
        """Neither follows nor replaces who can't be trusted."""
        a = self.member("a")
        self.extra = self.tls(self.certs())
        b = self.member("b")
        wait_until(lambda: "can't be trusted" in b.log(), "b says why")
        self.assertIn("its certificate is of an authority that --ha-ca does not have", b.log())
        self.assertNotIn(IN_SYNC, b.log())
        self.assertNotIn("is to lead", b.log())
        wait_until(lambda: "no TLS (" in a.log() and "no TLS (" in b.log(), "they say it of each other")
        time.sleep(CALLS)
        for each in (a, b):
            self.check_says_once(each, "closed the connection of", "can't be trusted")

    def ask(self, member, path, *certificate, over_tls=True):
        """The answer's header; "" where the connection is closed without one."""
        context = ssl.create_default_context(cafile=f"{self.authority}/ca.pem")
        if certificate:
            context.load_cert_chain(*certificate)
        with socket.create_connection(("127.0.0.1", member.port), 10) as plain:
            try:
                asked = context.wrap_socket(plain, server_hostname="localhost") if over_tls else plain
                with asked:
                    asked.sendall(f"GET {path} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
                    return asked.recv(4096).decode().partition("\r\n\r\n")[0].lower()
            except OSError:
                return ""

    def test_a_standby_that_asks_for_certificates_tells_nobody_else_who_leads(self):
        """Where none is asked for, whoever comes is told."""
        a, b = self.member("a"), self.member("b")
        self.wait_for_sync(b)
        with_one = self.ask(b, "/v1/jobs", f"{self.authority}/client.pem", f"{self.authority}/client.key")
        self.assertIn(" 503 ", with_one)
        self.assertIn("ddprun-standby: a:29400", with_one)
        stranger = self.certs()
        for path in ("/v1/jobs", "/v1/agent", "/v1/mirror", "/v1/status"):
            with self.subTest(path=path):
                self.assertEqual(self.ask(b, path), "")
                self.assertEqual(self.ask(b, path, f"{stranger}/client.pem", f"{stranger}/client.key"), "")
                plain = self.ask(b, path, over_tls=False)
                self.assertIn(" 426 ", plain)
                self.assertNotIn("ddprun-standby", plain)
        self.assertEqual((a.process.poll(), b.process.poll()), (None, None))
        b.process.terminate()
        self.assertEqual(b.process.wait(20), 0)
        self.extra = self.extra[:2] + self.extra[4:]  # all but --tls-ca, --tls-verify-client
        open_one = self.member("b")
        self.wait_for_sync(open_one)
        wait_until(lambda: "ddprun-standby" in self.ask(open_one, "/v1/jobs"), "it says who leads", 30)

    def test_sighup_reads_what_it_calls_the_other_one_with_again(self):
        """b's authority, then its certificate, are another lab's until they are replaced."""
        a = self.member("a")
        mine, other = self.scratch(), self.certs()
        for name in ("ca.pem", "client.pem", "client.key"):
            shutil.copy(f"{other}/{name}", f"{mine}/{name}")
        self.extra = (*self.tls(self.authority)[:4], f"--ha-ca={mine}/ca.pem", f"--ha-cert={mine}/client.pem",
                      f"--ha-key={mine}/client.key")
        b = self.member("b")
        wait_until(lambda: "its certificate is of an authority that --ha-ca does not have" in b.log(), "b says why", 30)

        def replace(*names):
            count = b.log().count("got SIGHUP: the token and the certificates are read again")
            for name in names:
                shutil.copy(f"{self.authority}/{name}", f"{mine}/{name}.new")
                os.replace(f"{mine}/{name}.new", f"{mine}/{name}")
            b.process.send_signal(signal.SIGHUP)
            wait_until(lambda: b.log().count("got SIGHUP: the token and the certificates are read again") > count,
                       "b reads them", 30)

        replace("ca.pem")
        wait_until(lambda: "it does not know the authority of this side's certificate (--ha-cert)" in b.log(),
                   "a refuses b's certificate", 30)
        self.assertIn("its certificate is of an authority that --tls-ca does not have", a.log())
        self.assertNotIn(IN_SYNC, b.log())
        replace("client.pem", "client.key")
        self.wait_for_sync(b)

    def test_tls_at_one_of_them_alone_is_said_once(self):
        a = self.member("a")
        self.extra = ()
        b = self.member("b")
        wait_until(lambda: "it speaks no TLS (--tls-ca)" in a.log(), "a says so")
        wait_until(lambda: "it speaks TLS, which is off here" in b.log(), "b says so")
        time.sleep(CALLS)
        self.check_says_once(a, "it speaks no TLS (--tls-ca)", "speaks no TLS 1.3 there")
        self.check_says_once(b, "it speaks TLS, which is off here", "wants TLS: give this ddprund --ha-ca")


if __name__ == "__main__":
    harness.main()
