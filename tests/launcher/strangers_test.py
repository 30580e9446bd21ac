#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tests that ddprun trusts no other user's program on the rendezvous' port of this machine, and tells it nothing."""
import json
import os
import re
import subprocess

import harness

STRANGER = 12345  # a uid in the range of ordinary users
SERVICE = 61200  # a uid of systemd's DynamicUser=


class Strangers(harness.Case):
    def setUp(self):
        if os.geteuid() != 0:
            self.skipTest("needs root, to be two users")

    def served_by(self, uid):
        daemon, endpoint = self.ddprund(preexec_fn=lambda: (os.setgid(uid), os.setuid(uid)), cwd="/")
        return daemon, endpoint

    def test_a_rendezvous_in_a_user_namespace_refuses_those_whom_it_can_not_tell_apart(self):
        daemon = self.start("--user", "--map-root-user", harness.DDPRUND, "--listen=127.0.0.1:0",
                            program="unshare")
        self.await_line(daemon, "other users' nodes are refused", "user namespace")
        endpoint = self.await_line(daemon, "listening on ").split()[-1]
        done = self.finish(self.start(f"--rdzv-endpoint={endpoint}", "echo", "never", cwd="/",
                                      preexec_fn=lambda: (os.setgid(STRANGER), os.setuid(STRANGER))), timeout=20)
        self.check_one_line(done, "it is not known whose program this node is", "user namespace", "--token-file")
        self.assertEqual(done.stdout, "")
        self.assertEqual(self.ddprun(f"--rdzv-endpoint={endpoint}", "true", timeout=20).returncode, 0)

    def test_a_job_does_not_join_at_another_users_rendezvous(self):
        _, endpoint = self.served_by(STRANGER)
        done = self.ddprun(f"--rdzv-endpoint={endpoint}", "echo", "never", timeout=20)
        self.check_one_line(done, endpoint, f"is a program of user {STRANGER}, and proves nothing", "--token-file")
        self.assertEqual(done.stdout, "")

    def test_a_service_of_the_machine_and_ones_own_are_obeyed(self):
        lock = f"/run/systemd/dynamic-uid/{SERVICE}"  # systemd has this file while it uses the uid
        os.makedirs(os.path.dirname(lock), exist_ok=True)
        for uid, has_lock, code in ((0, False, 0), (SERVICE, False, 2), (SERVICE, True, 0)):
            with self.subTest(uid=uid, has_lock=has_lock):
                if has_lock:
                    os.close(os.open(lock, os.O_CREAT | os.O_EXCL, 0o600))
                    self.addCleanup(os.unlink, lock)
                _, endpoint = self.served_by(uid)
                self.ddprun(f"--rdzv-endpoint={endpoint}", "true", timeout=20, code=code)

    def test_nobody_asks_whose_it_is_with_a_token(self):
        token = self.write(self.scratch(), "token", "0123456789abcdef\n")
        os.chmod(token, 0o600)
        theirs = self.write("/tmp", f"ddprun-stranger-{os.getpid()}", "0123456789abcdef\n")
        self.addCleanup(os.unlink, theirs)
        os.chown(theirs, STRANGER, STRANGER)
        os.chmod(theirs, 0o600)
        _, endpoint = self.ddprund(f"--token-file={theirs}", cwd="/",
                                   preexec_fn=lambda: (os.setgid(STRANGER), os.setuid(STRANGER)))
        self.ddprun(f"--rdzv-endpoint={endpoint}", f"--token-file={token}", "true", timeout=20, code=0)

    def test_a_standing_agent_takes_no_orders_from_another_users_queue(self):
        _, endpoint = self.served_by(STRANGER)
        agent = self.start(f"--rdzv-endpoint={endpoint}", f"--log-dir={self.scratch()}",
                           program=os.path.join(harness.BIN, "ddprun-agent"))
        done = self.finish(agent, timeout=20, code=2)
        self.assertIn(f"is a program of user {STRANGER}", done.stderr)

    def test_the_cookie_of_ddprunctl_open_is_of_no_use_to_another_user(self):
        """A browser sends the cookie to all ports of an address, and any user may listen on one of them."""
        _, endpoint = self.served_by(STRANGER)
        opened = self.start("open", f"--rdzv-endpoint={endpoint}", program=harness.DDPRUNCTL, cwd="/",
                            preexec_fn=lambda: (os.setgid(STRANGER), os.setuid(STRANGER)))
        address, port, once = re.search(r"http://([0-9.]+):(\d+)(/\S*)", opened.stdout.readline()).groups()

        def asked_as(user, path, cookie=""):
            done = subprocess.run(["/usr/bin/python3", "-c", VISIT, str(user), address, port, path, cookie], cwd="/",
                                  capture_output=True, text=True, timeout=30)
            self.assertEqual(done.returncode, 0, done.stderr)
            return json.loads(done.stdout)

        self.assertEqual(asked_as(STRANGER + 1, once)[0], 403)
        status, cookie = asked_as(STRANGER, once)
        self.assertEqual(status, 200)
        cookie = cookie.split(";")[0]
        for user, expected in ((STRANGER + 1, 403), (STRANGER, 200), (0, 200)):
            with self.subTest(user=user):
                self.assertEqual(asked_as(user, "/", cookie)[0], expected)

    def test_a_submission_is_not_handed_to_another_user(self):
        """The request would carry the submitter's environment. The server takes connections and records all bytes."""
        heard = os.path.join(self.scratch(), "heard")
        code = ("import os, socket, sys\n"
                f"heard = open({heard!r}, 'wb', 0)\n"
                f"os.setgid({STRANGER}); os.setuid({STRANGER})\n"
                "listener = socket.create_server(('127.0.0.1', 0))\n"
                "print(listener.getsockname()[1], flush=True)\n"
                "while True:\n"
                "    connection = listener.accept()[0]\n"
                "    heard.write(connection.recv(1 << 16))\n")
        server = subprocess.Popen(["/usr/bin/python3", "-c", code], stdout=subprocess.PIPE, text=True, cwd="/")
        self.addCleanup(lambda: (server.kill(), server.communicate()))
        endpoint = f"127.0.0.1:{int(server.stdout.readline())}"
        done = self.ddprun("--standing-agents", f"--rdzv-endpoint={endpoint}", "true", timeout=20, SECRET="of-mine")
        self.assertEqual(done.returncode, 2, done.text)
        self.assertIn(f"is a program of user {STRANGER}", done.stderr)
        with open(heard, "rb") as file:
            self.assertNotIn(b"of-mine", file.read())


# Requests argv[4] from argv[2]:argv[3] as user argv[1], with a cookie. Prints status and Set-Cookie.
VISIT = """
import http.client, json, os, sys
user, host, port, path, cookie = sys.argv[1:]
os.setgroups([]); os.setgid(int(user)); os.setuid(int(user))
connection = http.client.HTTPConnection(host, int(port), timeout=20)
connection.request("GET", path, headers={"Cookie": cookie})
answer = connection.getresponse()
print(json.dumps([answer.status, answer.getheader("Set-Cookie")]))
"""

# Sends requests to 127.0.0.1:argv[2] as user argv[1]. Prints each page's status, and whether the store took an ADD.
ASK = r"""
import json, os, socket, struct, sys
user, port = int(sys.argv[1]), int(sys.argv[2])
os.setgroups([]); os.setgid(user); os.setuid(user)
def said(words):
    with socket.create_connection(("127.0.0.1", port), 10) as connection:
        connection.sendall(words)
        try:
            return connection.recv(4096)
        except ConnectionResetError:
            return b""
def status(path, fields=""):
    return said(f"GET {path} HTTP/1.1\r\nHost: localhost\r\n{fields}\r\n".encode()).split()[1].decode()
upgrade = ("Upgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n"
           "Sec-WebSocket-Version: 13\r\n")
found = {path: status(path) for path in ("/healthz", "/", "/v1/jobs", "/v1/status", "/metrics")}
found.update({path: status(path, upgrade) for path in ("/v1/agent", "/v1/watch")})
add = b"\4" + struct.pack("<Q", 1) + b"k" + struct.pack("<q", 1)
found["store"] = "taken" if said(b"\0" + struct.pack("<I", 0x3C85F7CE) + add) else "closed"
print(json.dumps(found))
"""
PAGES = ("/", "/v1/jobs", "/v1/status", "/metrics")
ALL = {"/healthz": "200", **dict.fromkeys(PAGES, "200"), "/v1/agent": "101", "/v1/watch": "101", "store": "taken"}
NOTHING = {**dict.fromkeys(ALL, "403"), "/healthz": "200", "store": "closed"}


class OwnJob(harness.Case):
    """A ddprun serves its own job on loopback without a token. The kernel tells the user of each connection."""

    def setUp(self):
        if os.geteuid() != 0:
            self.skipTest("needs root, to be two users")
        self.endpoint = f"127.0.0.1:{harness.free_port()}"

    def node(self, user, *args):
        return self.start("--nnodes=2", f"--rdzv-endpoint={self.endpoint}", "--rdzv-id=job", *args, "echo", "ran",
                          preexec_fn=lambda: (os.setgroups([]), os.setgid(user), os.setuid(user)), cwd="/")

    def serve(self, user):
        """Starts the job's first node, which waits for the second one."""
        node = self.node(user, "--rdzv-conf=is_host=1")
        harness.wait_until(lambda: self.asked_as(0)["/healthz"] == "200", "it serves")
        return node

    def asked_as(self, user):
        done = subprocess.run(["/usr/bin/python3", "-c", ASK, str(user), self.endpoint.split(":")[1]], cwd="/",
                              capture_output=True, text=True, timeout=30)
        return json.loads(done.stdout) if done.returncode == 0 else {"/healthz": done.stderr}

    def check_runs(self, *nodes):
        for node in nodes:
            done = self.finish(node, timeout=30)
            self.assertEqual((done.returncode, done.stdout), (0, "ran\n"), done.text)
            self.assertNotIn("trusts the network", done.stderr)

    def test_another_user_can_neither_join_nor_look_nor_use_the_store(self):
        first = self.serve(STRANGER)
        self.assertEqual(self.asked_as(STRANGER + 1), NOTHING)
        for user in (STRANGER, 0):
            self.assertEqual(self.asked_as(user), ALL, user)
        self.check_runs(first, self.node(STRANGER))

    def test_a_node_of_another_user_is_told_in_one_line(self):
        first = self.serve(0)
        refused = self.finish(self.node(STRANGER), timeout=20)
        self.check_one_line(refused, self.endpoint, "serves programs of its own user and root alone", "--token-file")
        self.check_runs(first, self.node(0))

    def test_ddprunctl_of_another_user_is_told_in_one_line(self):
        self.serve(0)
        done = self.ddprunctl("jobs", f"--rdzv-endpoint={self.endpoint}", cwd="/",
                              preexec_fn=lambda: (os.setgid(STRANGER), os.setuid(STRANGER)))
        self.check_one_line(done, "serves programs of its own user and root alone", code=done.returncode)
        self.assertNotEqual(done.returncode, 0)


class SharedRendezvous(harness.Case):
    """A ddprund on loopback serves all users of its machine, each in their own jobs."""

    def setUp(self):
        if os.geteuid() != 0:
            self.skipTest("needs root, to be two users")
        _, self.endpoint = self.ddprund()

    def node(self, user, *args, job="job", program=("echo", "ran")):
        return self.start("--nnodes=2", f"--rdzv-endpoint={self.endpoint}", f"--rdzv-id={job}", *args, *program,
                          preexec_fn=lambda: (os.setgroups([]), os.setgid(user), os.setuid(user)), cwd="/")

    def phases(self):
        done = self.ddprunctl("jobs", f"--rdzv-endpoint={self.endpoint}", "--json")
        return {job["run_id"]: job["phase"] for job in json.loads(done.stdout)["jobs"]}

    def test_each_user_has_jobs_of_their_own(self):
        first = self.node(STRANGER)
        harness.wait_until(lambda: "job" in self.phases(), "the first node has joined")
        self.check_one_line(self.finish(self.node(STRANGER + 1), timeout=20),
                            f"job job is of user {STRANGER}", "give another --rdzv-id")
        others = [self.node(STRANGER + 1, job="mine") for _ in range(2)]
        for node in (first, self.node(STRANGER), *others):
            done = self.finish(node, timeout=30)
            self.assertEqual((done.returncode, done.stdout), (0, "ran\n"), done.text)

    def test_the_store_of_fixed_ranks_is_of_the_jobs_user(self):
        ask = ["/usr/bin/python3", "-c", ASK, str(STRANGER), self.endpoint.split(":")[1]]
        host, port = self.endpoint.split(":")
        nodes = [self.start("--nnodes=2", f"--node-rank={rank}", f"--master-addr={host}", f"--master-port={port}",
                            "--rdzv-conf=is_host=0", "sh", "-c", "echo here; exec sleep 100", cwd="/",
                            preexec_fn=lambda: (os.setgroups([]), os.setgid(STRANGER), os.setuid(STRANGER)))
                 for rank in range(2)]
        for node in nodes:
            self.await_line(node, "here", stream="stdout")
        stores = {}
        for user in (STRANGER, STRANGER + 1, 0):
            ask[3] = str(user)
            asked = subprocess.run(ask, cwd="/", capture_output=True, text=True, timeout=30)
            stores[user] = json.loads(asked.stdout)["store"]
        self.assertEqual(stores, {STRANGER: "taken", STRANGER + 1: "closed", 0: "taken"})


class OnTheNetwork(harness.HostsCase):
    """Without a token or TLS any machine could answer in place of another one."""

    def daemon(self):
        daemon = self.hosts[0].popen([harness.DDPRUND, "--insecure", f"--listen={self.hosts[0].address}:29400"],
                                     stderr=subprocess.PIPE, text=True, env=harness.environment())
        while "listening on" not in daemon.stderr.readline():
            self.assertIsNone(daemon.poll())
        return f"--rdzv-endpoint={self.hosts[0].address}:29400"

    def refused(self, program, *args):
        done = self.hosts[1].run([program, *args], env=harness.environment(), text=True, capture_output=True, timeout=30)
        self.assertEqual(done.returncode, 2, done.stderr)
        self.assertIn("is on another machine and proves nothing", done.stderr)
        self.assertIn("--token-file", done.stderr)

    def test_a_program_that_runs_or_hands_out_commands_wants_a_token(self):
        endpoint = self.daemon()
        self.refused(os.path.join(harness.BIN, "ddprun-agent"), endpoint, f"--log-dir={self.scratch()}")
        self.refused(harness.DDPRUN, "--standing-agents", endpoint, "true")

    def test_a_job_says_in_one_line_that_it_trusts_the_network(self):
        done = self.on_hosts(self.hosts, lambda h: [
            "--nnodes=2", f"--rdzv-endpoint={self.hosts[0].address}:29400", "--rdzv-id=job", "true"])
        self.assertEqual([each.returncode for each in done], [0, 0], self.transcript)
        self.assertEqual(self.transcript.count("trusts the network"), 1, self.transcript)


if __name__ == "__main__":
    harness.main()
