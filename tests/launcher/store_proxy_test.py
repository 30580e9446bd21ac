#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tests --store=proxy: workers reach the round's store through their own node's ddprun."""
import json
import os
import re
import socket
import struct
import sys
import threading
import time

import harness
import relay
from store_client import CLIENT, check_counts

SH = ["sh", "-c", harness.SHOW]

def established(port):
    """Returns the number of connections to the listener: the established sockets with its port."""
    num = 0
    for table in ("tcp", "tcp6"):
        with open(f"/proc/net/{table}", encoding="ascii") as file:
            words = [line.split() for line in file.readlines()[1:]]
        num += sum(int(each[1].rsplit(":", 1)[1], 16) == port and each[3] == "01" for each in words)
    return num


def ping_as(user, address):
    """Returns the store's answer at `address` to a PING by a process of `user`; b"": it closed the connection."""
    hear, say = os.pipe()
    child = os.fork()
    if child == 0:
        answer = b"not asked"
        try:
            os.setgroups([])
            os.setresgid(user, user, user)
            os.setresuid(user, user, user)
            with socket.socket() as store:
                store.settimeout(10)
                # create_connection() would import a module that this user may not be able to read.
                store.connect(address)
                try:
                    store.sendall(b"\0\xce\xf7\x85\x3c\x0d1234")
                    answer = store.recv(4)
                except (BrokenPipeError, ConnectionResetError):
                    answer = b""
        except OSError as error:
            answer = str(error).encode()
        finally:
            os.write(say, answer)
            os._exit(0)
    os.close(say)
    with os.fdopen(hear, "rb") as pipe:
        answer = pipe.read()
    os.waitpid(child, 0)
    return answer


class OneHost(harness.Case):
    def test_each_request_counts_once_while_connections_are_cut(self):
        # The daemon waits long for agents to reconnect, because the test cuts connections, not nodes.
        _, endpoint = self.ddprund("--reconnect-grace=20s")
        between = relay.Relay(int(endpoint.rsplit(":", 1)[1]))
        self.addCleanup(between.close)
        flags = ["--nnodes=2", f"--rdzv-endpoint=127.0.0.1:{between.port}", "--rdzv-conf=is_host=0",
                 "--rdzv-id=job", "--store=proxy", "--nproc_per_node=2"]
        running = [self.start(*flags, sys.executable, "-c", CLIENT, "500", "all") for _ in range(2)]
        ended = threading.Event()

        def keep_cutting():
            while not ended.wait(0.1):
                between.cut()
        cutter = threading.Thread(target=keep_cutting)
        cutter.start()
        try:
            done = [self.finish(process) for process in running]
        finally:
            ended.set()
            cutter.join()
        transcript = "\n".join(each.text for each in done)
        self.assertEqual([each.returncode for each in done], [0, 0], transcript)
        self.assertEqual(check_counts(self, "".join(each.stdout for each in done), 4), 2000)
        self.assertGreater(between.num_cut, 2, transcript)

    def test_each_request_counts_once_while_ddprund_is_killed(self):
        state, port = os.path.join(self.scratch(), "state"), harness.free_port()

        def serve():
            return self.ddprund(f"--listen=127.0.0.1:{port}", f"--state-dir={state}")[0]
        daemon = serve()
        # Without is_host=0 a node that starts while ddprund is down would serve the rendezvous itself.
        flags = ["--nnodes=2", f"--rdzv-endpoint=127.0.0.1:{port}", "--rdzv-conf=is_host=0",
                 "--rdzv-id=job", "--store=proxy", "--nproc_per_node=2"]
        running = [self.start(*flags, sys.executable, "-c", CLIENT, "1000", "all") for _ in range(2)]
        num_killed = 0
        while num_killed < 5 and any(process.poll() is None for process in running):
            time.sleep(0.3)  # the moment doesn't matter
            daemon.kill()
            daemon.wait()
            num_killed += 1
            daemon = serve()
        done = [self.finish(process) for process in running]
        transcript = "\n".join(each.text for each in done)
        self.assertEqual([each.returncode for each in done], [0, 0], transcript)
        self.assertEqual(check_counts(self, "".join(each.stdout for each in done), 4), 4000)
        self.assertGreater(num_killed, 2)
        self.assertEqual(transcript.count("begun"), 4, transcript)  # there was only one round

    def test_it_outlives_rounds_and_each_round_has_its_own_keys(self):
        fails_first = CLIENT + "\nsys.exit(3 if os.environ['DDPRUN_ROUND'] == '1' else 0)\n"
        done = self.ddprun("--standalone", "--store=proxy", "--nproc_per_node=2", "--max-restarts=1",
                           sys.executable, "-c", fails_first, "10", code=0)
        self.assertEqual(re.findall(r"sum (\d+)", done.stdout)[-2:], ["20", "20"], done.text)

    def test_the_proxy_is_the_default_with_a_token_and_direct_is_refused(self):
        token = f"--token-file={self.token()}"
        _, endpoint = self.ddprund(token)
        done = self.ddprun(f"--rdzv-endpoint={endpoint}", token, sys.executable, "-c", CLIENT, "5")
        self.assertEqual((done.returncode, done.stdout), (0, "begun\nsum 5\n"), done.text)
        done = self.ddprun(f"--rdzv-endpoint={endpoint}", token, "--store=direct", *SH)
        self.check_one_line(done, "--store=direct with --token-file")

    def test_node_rank_0_says_once_that_it_is_the_default(self):
        token = f"--token-file={self.token()}"
        _, endpoint = self.ddprund(token)
        says = "--token-file: the workers' store is reached through their node's own proxy alone (--store=proxy)"
        # With two nodes and two rounds the line comes once. A user who gave --store doesn't get it.
        for store, expected in ((), 1), (["--store=proxy"], 0):
            nodes = [self.start(f"--rdzv-endpoint={endpoint}", token, *store, "--nnodes=2", "--max-restarts=1",
                                f"--rdzv-id={expected}", "sh", "-c", "exit $((TORCHELASTIC_RESTART_COUNT == 0))")
                     for _ in range(2)]
            done = [self.finish(each) for each in nodes]
            self.assertEqual([each.returncode for each in done], [0, 0], done[0].text + done[1].text)
            self.assertEqual(sum(each.stderr.count(says) for each in done), expected, done[0].text + done[1].text)
            self.assertEqual(sum(each.stderr.count("MASTER_ADDR is 127.0.0.1") for each in done), expected)

    def test_the_proxy_is_the_default_with_tls_alone_too_and_direct_is_refused(self):
        certs = self.certs()
        tls = f"--tls-ca={certs}/ca.pem"
        _, endpoint = self.ddprund(*self.tls_server(certs))
        done = self.ddprun(f"--rdzv-endpoint={endpoint}", tls, "--nproc_per_node=2", sys.executable, "-c",
                           CLIENT + 'print("store", *store.getpeername())', "5")
        self.assertEqual((done.returncode, done.stdout.count("sum 10\n")), (0, 2), done.text)
        stores = re.findall(r"store (\S+) (\d+)", done.stdout)
        self.assertEqual(len(set(stores)), 1, done.text)
        self.assertEqual(stores[0][0], "127.0.0.1", done.text)
        self.assertEqual(done.stderr.count("--tls-ca: the workers' store is reached"), 1, done.text)
        for more in ([], self.tls_server(certs)):
            done = self.ddprun(f"--rdzv-endpoint={endpoint}", tls, *more, "--store=direct", *SH)
            self.check_one_line(done, "--store=direct with --tls-ca: everybody who reaches node rank 0 could use")
        # This ddprun serves the rendezvous itself.
        done = self.ddprun("--standalone", tls, *self.tls_server(certs), "--store=direct", *SH)
        self.check_one_line(done, "--store=direct with --tls-ca")

    def test_limits_are_told_to_whom_they_hit(self):
        _, endpoint = self.ddprund("--job-limits=keys=1")
        done = self.ddprun(f"--rdzv-endpoint={endpoint}", "--store=proxy", sys.executable, "-c", CLIENT, "5", code=1)
        self.assertIn("the store closed the connection", done.text)
        self.assertIn("ADD: this job's stores in the rendezvous have 1 keys, the limit is 1 "
                      "(ddprund --job-limits=keys=N)", done.stderr)
        status = self.ddprunctl("status", f"--rdzv-endpoint={endpoint}")
        self.assertIn("of 10000000 keys", status.stdout, status.stderr)
        daemon, endpoint = self.ddprund("--job-limits=requests=50")
        began = time.monotonic()
        done = self.ddprun(f"--rdzv-endpoint={endpoint}", "--store=proxy", sys.executable, "-c", CLIENT, "100")
        self.assertEqual((done.returncode, done.stdout), (0, "begun\nsum 100\n"), done.text)
        self.assertGreater(time.monotonic() - began, 0.9)  # 50 requests at once, 50 in the next second
        daemon.terminate()
        said = self.finish(daemon).stderr
        self.assertEqual(said.count("get more requests a second than the limit (--job-limits, --limits)"), 1, said)
        for flag, what in (("--limits=nodes=3", "is not keys=N"), ("--job-limits=keys=many", "wants a number")):
            self.check_one_line(self.finish(self.start(flag, program=harness.DDPRUND), timeout=20), what)

    # The requests of a worker that has three keys and one connection, until it is refused.
    GREEDY = {
        "keys": 'for i in range(3): add(b"/k%d" % i, 1)',
        "bytes": 'set(b"/large", bytes(2 << 20)); add(b"/more", 1)',
        "connections": 'first, store = store, socket.create_connection(store.getpeername(), 30); '
                       'store.sendall(b"\\0" + struct.pack("<I", 0x3C85F7CE) + b"\\x0d1234"); hear(4)'}

    def test_each_limit_is_one_line_where_it_is_hit_and_other_jobs_go_on(self):
        for flag, name, limit, said in (
                ("--job-limits", "keys", "5", "this job's stores in the rendezvous have 5 keys, the limit is 5"),
                ("--job-limits", "bytes", "1M", r"this job's stores in the rendezvous have \d+ bytes, the limit is 1000000"),
                ("--job-limits", "connections", "1", "this job's stores in the rendezvous have 1 connections, the limit is 1"),
                ("--limits", "keys", "6", "all jobs' stores in the rendezvous have 6 keys, the limit is 6"),
                ("--limits", "bytes", "1M", r"all jobs' stores in the rendezvous have \d+ bytes, the limit is 1000000"),
                ("--limits", "connections", "2", "all jobs' stores in the rendezvous have 2 connections, the limit is 2")):
            with self.subTest(flag=flag, name=name):
                _, endpoint = self.ddprund(f"{flag}={name}={limit}")
                at, go = [f"--rdzv-endpoint={endpoint}", "--store=proxy", sys.executable, "-c"], self.scratch() + "/go"
                used = lambda: json.loads(self.ddprunctl(  # noqa: E731
                    "status", "--json", f"--rdzv-endpoint={endpoint}").stdout)["stores"]["proxied"]["keys"]
                calm = self.start("--rdzv-id=calm", *at, CLIENT, f"until={go}")
                harness.wait_until(lambda: used() == 1, "the calm job has its key")
                greedy = self.ddprun("--rdzv-id=greedy", *at, CLIENT + self.GREEDY[name] + '\nprint("not refused")', "0")
                self.assertEqual(greedy.returncode, 1, greedy.text)
                self.assertRegex(greedy.text, "the store closed the connection|Connection reset by peer")
                told = re.findall(said + rf" \(ddprund {flag}={name}=N\)", greedy.stderr)
                self.assertEqual(len(told), 1, greedy.text)
                self.assertNotIn("not refused", greedy.stdout)
                harness.wait_until(lambda: used() == 1, "what the greedy job had is gone")
                self.write(os.path.dirname(go), "go", "")
                done = self.finish(calm)
                self.assertEqual((done.returncode, done.stderr), (0, ""), done.text)

    def test_the_stores_on_the_port_have_limits_of_bytes_and_connections(self):
        hello = b"\0\xce\xf7\x85\x3c\x0d1234"  # VALIDATE, and a PING, whose answer is 1234

        def client(address):
            store = socket.create_connection(address, 20)
            self.addCleanup(store.close)
            store.sendall(hello)
            return store

        def is_closed(store):
            try:
                return store.recv(1) == b""
            except ConnectionResetError:
                return True

        for flag, name, more in (("--limits", "the store on this port", []),
                                 ("--job-limits", "store of job of-mine, round 1", ["static"])):
            with self.subTest(flag):
                daemon, endpoint = self.ddprund(f"{flag}=connections=2,bytes=1M")
                host, port = endpoint.split(":")
                if more:
                    job = self.start("--nnodes=1", "--node-rank=0", f"--master-addr={host}", f"--master-port={port}",
                                     "--rdzv-id=of-mine", "sh", "-c", "echo up; exec sleep 600")
                    self.assertEqual(job.stdout.readline(), "up\n")
                first, second = client((host, int(port))), client((host, int(port)))
                for store in (first, second):
                    self.assertEqual(store.recv(4), b"1234")
                third = client((host, int(port)))
                self.assertTrue(is_closed(third))
                line = next(line for line in daemon.stderr if "closed the connection" in line)
                self.assertRegex(line, f"127.0.0.1:[0-9]+: {name} has 2 connections, the limit is 2 "
                                       f"\\(ddprund {flag}=connections=N\\)")
                text = lambda size: struct.pack("<Q", size) + bytes(size)  # noqa: E731
                second.sendall(b"\1" + text(1) + text(1 << 19))
                second.sendall(b"\x0d1234")
                self.assertEqual(second.recv(4), b"1234")
                second.sendall(b"\1" + text(2) + text(1 << 19))
                self.assertTrue(is_closed(second))
                line = next(line for line in daemon.stderr if "the limit is" in line)
                self.assertIn("the limit is 1000000", line)
                first.sendall(b"\x0d1234")
                self.assertEqual(first.recv(4), b"1234")  # a worker that keeps the limits goes on

    def test_one_agent_more_than_the_limit_is_told_and_may_come_later(self):
        daemon, endpoint = self.ddprund("--limits=connections=1")
        at, go = [f"--rdzv-endpoint={endpoint}"], self.scratch() + "/go"
        first = self.start(*at, "--rdzv-id=first", "sh", "-c", f"echo ready; until [ -e {go} ]; do sleep 0.02; done")
        self.assertEqual(first.stdout.readline(), "ready\n")
        why = "its limit of agents, 1, is reached (ddprund --limits=connections=N)"
        for run_id in ("first", "second"):  # a node of this job, and of another one
            self.check_one_line(self.ddprun(*at, f"--rdzv-id={run_id}", *SH), f"does not take this node's request: {why}", code=75)
            line = next(line for line in daemon.stderr if "refused the agent" in line)
            self.assertRegex(line, r"refused the agent 127.0.0.1:\d+: " + re.escape(why))
        self.write(os.path.dirname(go), "go", "")
        done = self.finish(first)
        self.assertEqual((done.returncode, done.stderr), (0, ""), done.text)
        self.ddprun(*at, "--rdzv-id=second", *SH, code=0)

    def test_connections_of_the_rendezvous_grow_with_nodes_not_with_ranks(self):
        code = CLIENT + """
import time
open(os.path.join(os.environ["MEET"], os.environ["RANK"]), "w").close()
while not os.path.exists(os.path.join(os.environ["MEET"], "go")): time.sleep(0.02)
"""
        for nodes, per_node in ((1, 2), (1, 16), (2, 2)):
            with self.subTest(nodes=nodes, per_node=per_node):
                _, endpoint = self.ddprund()
                meet, port, ranks = self.scratch(), int(endpoint.rsplit(":", 1)[1]), nodes * per_node
                flags = [f"--nnodes={nodes}", f"--rdzv-endpoint={endpoint}", "--rdzv-conf=is_host=0", "--rdzv-id=job",
                         "--store=proxy", f"--nproc_per_node={per_node}"]
                running = [self.start(*flags, sys.executable, "-c", code, "1", MEET=meet) for _ in range(nodes)]
                harness.wait_until(lambda: len(os.listdir(meet)) == ranks, "all have used the store", harness.TIMEOUT)
                harness.wait_until(lambda: established(port) == nodes, f"{nodes} connections, one of each node")
                status = self.ddprunctl("status", "--json", f"--rdzv-endpoint={endpoint}")
                used = json.loads(status.stdout)["stores"]
                self.assertEqual((used["proxied"]["connections"], used["plain"]["connections"]), (ranks, 0), used)
                self.write(meet, "go", "")
                for done in map(self.finish, running):
                    self.assertEqual(done.returncode, 0, done.text)

    def test_processes_of_other_users_are_refused(self):
        if os.geteuid() != 0:
            self.skipTest("only root can become another user")
        _, endpoint = self.ddprund()
        go = os.path.join(self.scratch(), "go")
        job = self.start(f"--rdzv-endpoint={endpoint}", "--store=proxy", "sh", "-c",
                         f'echo "$MASTER_ADDR $MASTER_PORT"; until [ -e {go} ]; do sleep 0.02; done')
        host, port = job.stdout.readline().split()
        address = (host, int(port))
        self.assertEqual([ping_as(user, address) for user in (0, 65534, 65534, 0)], [b"1234", b"", b"", b"1234"])
        open(go, "w", encoding="ascii").close()
        done = self.finish(job, code=0)
        self.assertEqual(done.stderr.count("refused a connection of user 65534: it is for user 0 alone (said once)"),
                         1, done.text)

    def test_a_job_with_fixed_ranks_has_it_too(self):
        port = harness.free_port()
        for more in ([], [f"--token-file={self.token()}"]):
            with self.subTest(more):
                done = self.ddprun("--nnodes=1", "--master-addr=127.0.0.1", f"--master-port={port}", "--node-rank=0",
                                   "--store=proxy", *more, sys.executable, "-c", CLIENT, "5")
                self.assertEqual((done.returncode, done.stdout), (0, "begun\nsum 5\n"), done.text)

    def test_nodes_have_to_agree(self):
        _, endpoint = self.ddprund()
        flags = ["--nnodes=2", f"--rdzv-endpoint={endpoint}", "--rdzv-id=job"]
        first = self.start(*flags, "--store=proxy", *SH)
        self.assertIn("waiting for nodes", first.stderr.readline())
        second = self.ddprun(*flags, *SH, code=2)
        self.assertRegex(second.stderr, r"--store.*proxy.*direct|--store.*direct.*proxy")

    def test_a_word_that_is_no_mode(self):
        done = self.ddprun("--standalone", "--store=disk", *SH, code=2)
        self.assertIn("must be direct or proxy", done.stderr)


class TwoHosts(harness.HostsCase):
    def test_one_open_port_and_each_node_its_own_store_address(self):
        meet = self.scratch()
        endpoint = f"{self.hosts[0].address}:29400"
        flags = ["--nnodes=2", "--nproc_per_node=2", f"--rdzv-endpoint={endpoint}", "--rdzv-id=job",
                 "--store=proxy"]
        wait = f"{harness.SHOW}; {harness.MEET}; until [ -e \"$MEET/go\" ]; do sleep 0.01; done"
        running = [self.start(*flags, "sh", "-c", wait, host=host, MEET=meet) for host in self.hosts]
        harness.wait_until(lambda: len([f for f in os.listdir(meet) if f[0] == "1"]) == 4, "all workers run")
        beyond = [host.listening(beyond_loopback=True) for host in self.hosts]
        open(os.path.join(meet, "go"), "w", encoding="ascii").close()
        done = [self.finish(process) for process in running]
        transcript = "\n".join(each.text for each in done)
        self.assertEqual([each.returncode for each in done], [0, 0], transcript)
        self.assertEqual(beyond, [{29400}, set()], transcript)
        workers = harness.parse_shown("".join(each.stdout for each in done))
        self.assertEqual({w["master"].rsplit(":", 1)[0] for w in workers}, {"127.0.0.1"}, transcript)
        self.assertEqual({w["node"] for w in workers}, {host.address for host in self.hosts})

    def test_the_store_lives_until_the_last_worker_is_gone_on_every_host(self):
        # The worker on the rendezvous' host ends at once. The other host's worker needs the store while it ends.
        code = (CLIENT + """
import signal, time
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
ready = os.path.join(os.environ["MEET"], os.environ["DDPRUN_ROUND"])
if os.environ["DDPRUN_NODE_ADDR"] == sys.argv[2]:
  while not os.path.exists(ready): time.sleep(0.01)
  sys.exit(6)
open(ready, "w").close()
signal.sigwait({signal.SIGTERM})
end = time.monotonic() + 0.5
while time.monotonic() < end: add(b"/sum", 1)
print("store to the end")
""")
        for more in ([], ["--max-restarts=1"]):
            with self.subTest(more):
                first, meet = self.hosts[0].address, self.scratch()
                done = self.on_hosts(self.hosts, lambda h: [
                    "--nnodes=2", f"--rdzv-endpoint={first}:29400", "--rdzv-id=job", "--store=proxy", *more,
                    sys.executable, "-c", code, "5", first], lambda h: {"MEET": meet})
                self.assertEqual([each.returncode for each in done], [6, 6], self.transcript)
                self.assertEqual(done[1].stdout.count("store to the end\n"), 1 + len(more), self.transcript)

    def test_sums_over_both_hosts(self):
        flags = ["--nnodes=2", "--nproc_per_node=2", f"--rdzv-endpoint={self.hosts[0].address}:29400",
                 "--rdzv-id=job", "--store=proxy"]
        done = self.on_hosts(self.hosts, lambda h: [*flags, sys.executable, "-c", CLIENT, "100"])
        self.assertEqual([each.returncode for each in done], [0, 0], self.transcript)
        sums = re.findall(r"sum (\d+)", "".join(each.stdout for each in done))
        self.assertEqual(sums, ["400"] * 4, self.transcript)


if __name__ == "__main__":
    harness.main()
