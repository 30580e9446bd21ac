#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""--store=proxy: workers reach the round's store through their own node's ddprun."""
import os
import re
import socket
import sys
import threading
import time

import harness

SH = ["sh", "-c", harness.SHOW]

# A worker with a c10d client of its own: each ADD has to count once. Its last line is the sum. With
# "all" each turn has an APPEND, a COMPARE_SET, a QUEUE_PUSH and a QUEUE_POP, too.
CLIENT = r"""
import os, socket, struct, sys
store = socket.create_connection((os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])), 30)
store.settimeout(60)
store.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
string = lambda text: struct.pack("<Q", len(text)) + text
def hear(size):
    got = b""
    while len(got) < size:
        more = store.recv(size - len(got))
        assert more, "the store closed the connection"
        got += more
    return got
def add(key, number):
    store.sendall(b"\4" + string(key) + struct.pack("<q", number))
    return struct.unpack("<q", hear(8))[0]
def value():
    return hear(struct.unpack("<Q", hear(8))[0])
def everything(turn):
    mine, earlier, now = b"/mine" + os.environ["RANK"].encode(), b"%d" % (turn - 1), b"%d" % turn
    store.sendall(b"\x09" + string(b"/text") + string(b"x"))
    store.sendall(b"\2" + string(mine) + string(earlier if turn else b"") + string(now))
    assert value() == now, "a COMPARE_SET took effect twice, or never"
    store.sendall(b"\x0e" + string(b"/queue") + string(now) + b"\x0f" + string(b"/queue"))
    assert struct.unpack("<q", hear(8))[0] > 0, "a QUEUE_POP took effect twice"
    value()
store.sendall(b"\0" + struct.pack("<I", 0x3C85F7CE))
for turn in range(int(sys.argv[1])):
    add(b"/sum", 1)
    if sys.argv[2:] == ["all"]: everything(turn)
print("begun", flush=True)
if add(b"/here", 1) == int(os.environ["WORLD_SIZE"]): store.sendall(b"\1" + string(b"/all") + string(b"x"))
store.sendall(b"\6" + struct.pack("<Q", 1) + string(b"/all"))
assert hear(1) == b"\0"
if sys.argv[2:] == ["all"]:
    store.sendall(b"\3" + string(b"/text"))
    assert len(value()) == add(b"/sum", 0), "an APPEND took effect twice, or never"
    store.sendall(b"\x10" + string(b"/queue"))
    assert struct.unpack("<q", hear(8))[0] == 0, "a QUEUE_PUSH took effect twice"
print("sum", add(b"/sum", 0))
"""


class Relay:
    """Carries connections to a port of 127.0.0.1; cut() ends those that are open."""

    def __init__(self, port):
        self._to = port
        self._open = set()
        self._lock = threading.Lock()
        self.num_cut = 0
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self):
        while True:
            try:
                one, _ = self._listener.accept()
                other = socket.create_connection(("127.0.0.1", self._to))
            except OSError:
                return
            with self._lock:
                self._open |= {one, other}
            for source, target in ((one, other), (other, one)):
                threading.Thread(target=self._pump, args=(source, target), daemon=True).start()

    def _pump(self, source, target):
        try:
            while data := source.recv(1 << 16):
                target.sendall(data)
        except OSError:
            pass
        with self._lock:
            for each in (source, target):
                self._open.discard(each)
                self._shut(each)
        source.close()

    @staticmethod
    def _shut(one):
        try:
            one.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass

    def cut(self):
        with self._lock:
            self.num_cut += bool(self._open)
            for each in self._open:
                self._shut(each)

    def close(self):
        self._listener.close()
        self.cut()


class OneHost(harness.Case):
    def test_each_request_counts_once_while_connections_are_cut(self):
        _, endpoint = self.ddprund()
        relay = Relay(int(endpoint.rsplit(":", 1)[1]))
        self.addCleanup(relay.close)
        flags = ["--nnodes=2", f"--rdzv-endpoint=127.0.0.1:{relay.port}", "--rdzv-conf=is_host=0",
                 "--rdzv-id=job", "--store=proxy", "--nproc_per_node=2"]
        running = [self.start(*flags, sys.executable, "-c", CLIENT, "500", "all") for _ in range(2)]
        ended = threading.Event()

        def keep_cutting():
            while not ended.wait(0.1):
                relay.cut()
        cutter = threading.Thread(target=keep_cutting)
        cutter.start()
        try:
            done = [self.finish(process) for process in running]
        finally:
            ended.set()
            cutter.join()
        transcript = "\n".join(each.text for each in done)
        self.assertEqual([each.returncode for each in done], [0, 0], transcript)
        sums = re.findall(r"sum (\d+)", "".join(each.stdout for each in done))
        self.assertEqual(sums, ["2000"] * 4, transcript)
        self.assertGreater(relay.num_cut, 2, transcript)

    def test_each_request_counts_once_while_ddprund_is_killed(self):
        state, port = os.path.join(self.scratch(), "state"), harness.free_port()

        def serve():
            return self.ddprund(f"--listen=127.0.0.1:{port}", f"--state-dir={state}")[0]
        daemon = serve()
        # Else one that begins while ddprund is away would serve the rendezvous there itself.
        flags = ["--nnodes=2", f"--rdzv-endpoint=127.0.0.1:{port}", "--rdzv-conf=is_host=0",
                 "--rdzv-id=job", "--store=proxy", "--nproc_per_node=2"]
        running = [self.start(*flags, sys.executable, "-c", CLIENT, "1000", "all") for _ in range(2)]
        num_killed = 0
        while num_killed < 5 and any(process.poll() is None for process in running):
            time.sleep(0.3)  # the moment does not matter
            daemon.kill()
            daemon.wait()
            num_killed += 1
            daemon = serve()
        done = [self.finish(process) for process in running]
        transcript = "\n".join(each.text for each in done)
        self.assertEqual([each.returncode for each in done], [0, 0], transcript)
        sums = re.findall(r"sum (\d+)", "".join(each.stdout for each in done))
        self.assertEqual(sums, ["4000"] * 4, transcript)
        self.assertGreater(num_killed, 2)
        self.assertEqual(transcript.count("begun"), 4, transcript)  # one round alone

    def test_it_outlives_rounds_and_each_round_has_its_own_keys(self):
        fails_first = CLIENT + "\nsys.exit(3 if os.environ['DDPRUN_ROUND'] == '1' else 0)\n"
        done = self.ddprun("--standalone", "--store=proxy", "--nproc_per_node=2", "--max-restarts=1",
                           sys.executable, "-c", fails_first, "10")
        self.assertEqual(done.returncode, 0, done.text)
        self.assertEqual(re.findall(r"sum (\d+)", done.stdout)[-2:], ["20", "20"], done.text)

    def test_with_a_token_it_is_the_default_and_direct_is_refused(self):
        token = f"--token-file={self.token()}"
        _, endpoint = self.ddprund(token)
        done = self.ddprun(f"--rdzv-endpoint={endpoint}", token, sys.executable, "-c", CLIENT, "5")
        self.assertEqual((done.returncode, done.stdout), (0, "begun\nsum 5\n"), done.text)
        done = self.ddprun(f"--rdzv-endpoint={endpoint}", token, "--store=direct", *SH)
        self.check_one_line(done, "--store=direct with --token-file")

    def test_limits_are_told_to_whom_they_hit(self):
        _, endpoint = self.ddprund("--job-limits=keys=1")
        done = self.ddprun(f"--rdzv-endpoint={endpoint}", "--store=proxy", sys.executable, "-c", CLIENT, "5")
        self.assertEqual(done.returncode, 1, done.text)
        self.assertIn("the store closed the connection", done.text)
        self.assertIn("ADD: this job's stores in the rendezvous have 1 keys, the limit is 1 "
                      "(ddprund --job-limits=keys=N)", done.stderr)
        status = self.ddprunctl("status", f"--rdzv-endpoint={endpoint}")
        self.assertIn("of 10000000 keys", status.stdout, status.stderr)
        _, endpoint = self.ddprund("--job-limits=requests=50")
        began = time.monotonic()
        done = self.ddprun(f"--rdzv-endpoint={endpoint}", "--store=proxy", sys.executable, "-c", CLIENT, "100")
        self.assertEqual((done.returncode, done.stdout), (0, "begun\nsum 100\n"), done.text)
        self.assertGreater(time.monotonic() - began, 0.9)  # 50 at once, 50 in the next second
        for flag, what in (("--limits=nodes=3", "is not keys=N"), ("--job-limits=keys=many", "wants a number")):
            self.check_one_line(self.finish(self.start(flag, program=harness.DDPRUND), timeout=20), what)

    def test_with_fixed_ranks(self):
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
        second = self.ddprun(*flags, *SH)
        self.assertEqual(second.returncode, 2, second.text)
        self.assertRegex(second.stderr, r"--store.*proxy.*direct|--store.*direct.*proxy")

    def test_a_word_that_is_no_mode(self):
        done = self.ddprun("--standalone", "--store=disk", *SH)
        self.assertEqual(done.returncode, 2, done.text)
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
        # The rendezvous' own host is done at once; the other host's worker needs the store while it ends.
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
