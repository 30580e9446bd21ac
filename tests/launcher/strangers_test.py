#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Whoever takes the rendezvous' port on this machine, as another user, is not obeyed, and told nothing."""
import os
import subprocess

import harness

STRANGER = 12345  # a uid that a person may log in with
ONES_OWN = (0, 61200)  # root's, of systemd's DynamicUser=


class Strangers(harness.Case):
    def setUp(self):
        if os.geteuid() != 0:
            self.skipTest("needs root, to be two users")

    def served_by(self, uid):
        daemon, endpoint = self.ddprund(preexec_fn=lambda: (os.setgid(uid), os.setuid(uid)), cwd="/")
        return daemon, endpoint

    def test_a_job_does_not_join_at_another_users_rendezvous(self):
        _, endpoint = self.served_by(STRANGER)
        done = self.ddprun(f"--rdzv-endpoint={endpoint}", "echo", "never", timeout=20)
        self.check_one_line(done, endpoint, f"is a program of user {STRANGER}, and proves nothing", "--token-file")
        self.assertEqual(done.stdout, "")

    def test_a_service_of_the_machine_and_ones_own_are_obeyed(self):
        for uid in ONES_OWN:
            with self.subTest(uid=uid):
                _, endpoint = self.served_by(uid)
                self.assertEqual(self.ddprun(f"--rdzv-endpoint={endpoint}", "true", timeout=20).returncode, 0)

    def test_with_a_token_nobody_asks_whose_it_is(self):
        token = self.write(self.scratch(), "token", "0123456789abcdef\n")
        os.chmod(token, 0o600)
        theirs = self.write("/tmp", f"ddprun-stranger-{os.getpid()}", "0123456789abcdef\n")
        self.addCleanup(os.unlink, theirs)
        os.chown(theirs, STRANGER, STRANGER)
        os.chmod(theirs, 0o600)
        _, endpoint = self.ddprund(f"--token-file={theirs}", cwd="/",
                                   preexec_fn=lambda: (os.setgid(STRANGER), os.setuid(STRANGER)))
        done = self.ddprun(f"--rdzv-endpoint={endpoint}", f"--token-file={token}", "true", timeout=20)
        self.assertEqual(done.returncode, 0, done.text)

    def test_a_standing_agent_takes_no_orders_from_another_users_queue(self):
        _, endpoint = self.served_by(STRANGER)
        agent = self.start(f"--rdzv-endpoint={endpoint}", f"--log-dir={self.scratch()}",
                           program=os.path.join(harness.BIN, "ddprun-agent"))
        done = self.finish(agent, timeout=20)
        self.assertEqual(done.returncode, 2, done.text)
        self.assertIn(f"is a program of user {STRANGER}", done.stderr)

    def test_a_submission_is_not_handed_to_another_user(self):
        """Its own environment would be: the server takes connections and keeps what it hears."""
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


class OnTheNetwork(harness.HostsCase):
    """Without a token or TLS anybody could answer in the place of another machine."""

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

    def test_who_runs_or_hands_out_commands_wants_a_token(self):
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
