#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Thousands of clients connect and never identify themselves. Jobs run on, other nodes join at once, and the daemon's
memory and descriptors stay bounded."""
import itertools
import os
import re
import resource
import select
import socket
import ssl
import struct
import subprocess
import threading
import time

import harness

SANITIZED = bool(os.environ.get("DDPRUN_SANITIZE"))
NUM = 600 if SANITIZED else 10_000
WITHIN = 10 if SANITIZED else 1.0  # seconds, from ddprun's start to its end
MOST_GROWTH = 64 << 20  # bytes of memory
HOSTILE = [f"127.0.0.{i}" for i in range(2, 10)]
UPGRADE = (b"GET /v1/agent HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
           b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n")


def hello():
    """Returns the bytes of a whole ClientHello."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    out = ssl.MemoryBIO()
    try:
        context.wrap_bio(ssl.MemoryBIO(), out, server_hostname="localhost").do_handshake()
    except ssl.SSLWantReadError:
        pass
    return out.read()


PLAIN = [b"", b"GET /v1/ag", UPGRADE, b"GET / HTTP/1.1\r\nX: " + b"x" * 8000]
TLS = [b"", b"\x16\x03", hello(), b"\x16\x03\x01\x3f\xff" + b"\x01" * 16_000]


class Flood:
    """Connections that never complete a request. Within `with`, 1,000 of them a second are replaced, one by one."""

    def __init__(self, port, sayings):
        self.port, self.sayings = port, itertools.cycle(sayings)
        self.addresses = itertools.cycle(HOSTILE)
        self.connections, self.over = [], threading.Event()
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.num_made = 0

    def one(self):
        connection = socket.socket()
        # With this, close() leaves no socket in TIME_WAIT.
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        connection.settimeout(10)
        connection.bind((next(self.addresses), 0))
        connection.connect(("127.0.0.1", self.port))
        try:
            connection.send(next(self.sayings))
        except OSError:
            pass  # the daemon has closed this connection already
        self.num_made += 1
        return connection

    def make(self, num):
        self.connections += [self.one() for _ in range(num)]

    def _run(self):
        for i in itertools.cycle(range(len(self.connections))):
            if i % 20 == 0 and self.over.wait(0.02):
                return
            self.connections[i].close()
            try:
                self.connections[i] = self.one()
            except OSError:
                pass  # the daemon accepts none for a moment, so this one is tried again later

    def __enter__(self):
        self.thread.start()

    def __exit__(self, *_):
        self.over.set()
        self.thread.join()

    def close(self):
        for connection in self.connections:
            connection.close()


def trickle(ports_and_sayings, most_seconds):
    """Makes connections that send the first part at once. If that is a whole request, they read the answer. Then they
    send one byte of the second part each 0.2 s. Returns the seconds after which each was closed, if it was."""
    began = time.monotonic()
    rest, ended = {}, {}
    for name, port, first, then in ports_and_sayings:
        connection = socket.create_connection(("127.0.0.1", port), 10)
        connection.sendall(first)
        if first.endswith(b"\r\n\r\n"):
            connection.recv(1 << 16)
        connection.setblocking(False)
        rest[connection] = (name, iter(then))
    while rest and time.monotonic() - began < most_seconds:
        tick = time.monotonic() + 0.2
        for connection, (_, then) in rest.items():
            try:
                connection.send(bytes([next(then)]))
            except OSError:
                pass  # checked below
        while rest and (left := tick - time.monotonic()) > 0:
            for connection in select.select(list(rest), [], [], left)[0]:
                try:
                    said = connection.recv(1 << 16)
                except OSError:
                    said = b""
                if not said:
                    ended[rest.pop(connection)[0]] = time.monotonic() - began
                    connection.close()
    for connection in rest:
        connection.close()
    return ended


class FloodTest(harness.Case):
    def setUp(self):
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        self.addCleanup(resource.setrlimit, resource.RLIMIT_NOFILE, (soft, hard))
        self.num = min(NUM, hard - 1000)
        self.token_file = self.token()
        self.authority = self.certs()

    def serve(self, *args, num_descriptors=None):
        log = os.path.join(self.scratch(), "log")
        def limit():
            if num_descriptors:
                resource.setrlimit(resource.RLIMIT_NOFILE, (num_descriptors, num_descriptors))
        with open(log, "w", encoding="utf-8") as out:
            daemon = subprocess.Popen([harness.DDPRUND, "--listen=127.0.0.1:0", *args], stderr=out,
                                      env=harness.environment(), preexec_fn=limit)
        self.daemon = daemon
        def end():
            daemon.kill()
            daemon.wait()
        self.addCleanup(end)
        self.said = lambda: open(log, encoding="utf-8").read()
        harness.wait_until(lambda: "listening on" in self.said(), "ddprund serves")
        return int(self.said().split("listening on 127.0.0.1:")[1].split()[0])

    def peak(self):
        with open(f"/proc/{self.daemon.pid}/status", encoding="utf-8") as file:
            return int(file.read().split("VmHWM:")[1].split()[0]) << 10

    def resident(self):
        with open(f"/proc/{self.daemon.pid}/statm", encoding="utf-8") as file:
            return int(file.read().split()[1]) * resource.getpagesize()

    def num_descriptors(self):
        return len(os.listdir(f"/proc/{self.daemon.pid}/fd"))

    def job(self, job, port, security, *program):
        return self.start(f"--rdzv-endpoint=127.0.0.1:{port}", "--rdzv-conf=is_host=0", f"--rdzv-id={job}",
                          *security, *program)

    def withstand(self, port, sayings, security, most_descriptors):
        place = self.scratch()
        begun, go = os.path.join(place, "begun"), os.path.join(place, "go")
        before = self.job("before", port, security, "sh", "-c",
                          f': >{begun}; until [ -e {go} ]; do sleep 0.02; done')
        harness.wait_until(lambda: os.path.exists(begun), "a job runs")
        alone = self.timed("alone", port, security)
        resident = self.resident()
        flood = Flood(port, sayings)
        self.addCleanup(flood.close)
        flood.make(self.num)
        took, descriptors = [], []
        with flood:
            for i in range(5):  # before the first job some connections wait to be accepted
                took.append(self.timed(f"meanwhile{i}", port, security))
                descriptors.append(self.num_descriptors())
        growth = self.resident() - resident
        print(f"{flood.num_made} half-open connections: {growth / 2**20:.1f} MiB more, "
              f"{max(descriptors)} descriptors; a job alone {alone:.3f} s, meanwhile "
              f"{', '.join(f'{each:.3f}' for each in took)} s", flush=True)
        self.assertLess(sorted(took)[len(took) // 2], WITHIN)
        self.assertLessEqual(max(descriptors), most_descriptors)
        if not SANITIZED:  # a sanitizer needs memory itself
            self.assertLess(growth, MOST_GROWTH)
        self.write(place, "go", "")
        done = self.finish(before, code=0)
        self.assertEqual(done.stderr, "", done.text)
        self.assertNotIn("can't accept", self.said())

    def timed(self, job, port, security):
        begin = time.monotonic()
        done = self.finish(self.job(job, port, security, "sh", "-c", harness.SHOW))
        self.assertEqual(done.returncode, 0, done.text + self.said()[-2000:])
        self.assertEqual(done.stderr, "", done.text)
        return time.monotonic() - begin

    def test_a_daemon_with_a_token_and_few_descriptors_withstands_it(self):
        port = self.serve(f"--token-file={self.token_file}", num_descriptors=1024)
        self.withstand(port, PLAIN, [f"--token-file={self.token_file}"], 1000)

    def test_a_daemon_over_tls_withstands_it(self):
        port = self.serve(f"--token-file={self.token_file}", *self.tls_server(self.authority))
        self.withstand(port, TLS, [f"--token-file={self.token_file}", f"--tls-ca={self.authority}/ca.pem"], 5000)

    def test_the_store_of_an_open_port_leaves_descriptors_for_agents(self):
        port = self.serve(num_descriptors=1024)
        self.withstand(port, [b"\0", b"\0\xce\xf7\x85\x3c"], [], 1000)

    def test_a_client_that_trickles_is_closed_at_the_deadline(self):
        security = f"--token-file={self.token_file}"
        over_tls = self.serve(security, *self.tls_server(self.authority))
        tls_said = self.said
        port = self.serve(security)
        took = trickle((("a request", port, b"GET /healthz HTTP/1.1\r\n", b"X: " + b"x" * 1000),
                        ("a body", port, b"POST /v1/jobs HTTP/1.1\r\nContent-Length: 1000\r\n\r", b"\n" + b"x" * 1000),
                        ("a proof", port, UPGRADE, b"\x81\xfe\x04\0mask" + b"x" * 1000),
                        ("a hello", over_tls, b"", hello())), 16)
        self.assertEqual(sorted(took), ["a body", "a hello", "a proof", "a request"], (took, self.said(), tls_said()))
        for name, seconds in took.items():  # each part has 10 s, independent of when its last byte came
            self.assertGreater(seconds, 9, name)
        for said, line in ((self.said, "waited 10000 ms for a request"), (self.said, "no proof of the token in 10000 ms"),
                           (tls_said, "waited 10000 ms for the TLS handshake")):
            harness.wait_until(lambda: line in said(), line)

    def test_a_header_of_a_megabyte_is_closed_at_once_and_is_in_no_memory(self):
        """The header has one field of a megabyte, or as many fields as a megabyte holds."""
        for fields in (b"X: " + b"x" * (1 << 20), b"a:\r\n" * (1 << 18)):
            with self.subTest(fields[:8]):
                self.check_too_large(b"", b"GET /healthz HTTP/1.1\r\n" + fields, "header limit")

    def test_a_body_or_a_first_message_that_is_too_large_is_closed_at_once_and_is_in_no_memory(self):
        """The message claims 1 GiB, or 2⁶² bytes. Only a megabyte of it is sent."""
        post, some, token = b"POST /v1/jobs HTTP/1.1\r\n", b"x" * (1 << 20), [f"--token-file={self.token_file}"]
        frames = [first + struct.pack(">Q", 1 << 62) + b"mask" + some for first in (b"\x81\xff", b"\x82\xff")]
        for first, then, said, flags in (
                (b"", post + b"Content-Length: 1073741824\r\n\r\n" + some, "body limit", token),
                (b"", post + b"Transfer-Encoding: chunked\r\n\r\n40000000\r\n" + some, "body limit", token),
                (b"", post + b"Transfer-Encoding: chunked\r\n\r\n" + b"1\r\nx\r\n" * (1 << 17), "limit", token),
                *((UPGRADE, frame, "a message is larger than allowed", flags)
                  for frame in frames for flags in (token, ["--verbose"]))):
            with self.subTest(said=said, begin=then[:60], flags=flags):
                self.check_too_large(first, then, said, flags)

    def check_too_large(self, first, then, said, flags=None):
        """Sends `first`, if any, and reads its answer. Then sends `then`, which must be refused with `said`."""
        port = self.serve(*([f"--token-file={self.token_file}"] if flags is None else flags))

        def closed_after(num):
            connections = [socket.create_connection(("127.0.0.1", port), 10) for _ in range(num)]
            for connection in connections:
                connection.sendall(first)
                if first:
                    connection.recv(1 << 16)
            began = time.monotonic()
            for connection in connections:
                try:
                    connection.sendall(then)
                except (BrokenPipeError, ConnectionResetError):
                    pass
            for connection in connections:
                try:
                    while connection.recv(1 << 16):
                        pass
                except ConnectionResetError:
                    pass
                connection.close()
            return time.monotonic() - began

        closed_after(1)  # fills caches that are filled once
        resident = self.resident()
        self.assertLess(closed_after(8), 5)  # long before the deadline of 10 s
        if not SANITIZED:
            self.assertLess(self.peak() - resident, 1 << 20)
        harness.wait_until(lambda: len(re.findall(f"connection of .*{said}", self.said())) == 9, "all are named")


if __name__ == "__main__":
    harness.main()
