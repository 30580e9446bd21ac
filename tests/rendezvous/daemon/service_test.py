#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tests ddprund and ddprun as services of systemd (docs/systemd.md). They send messages to a manager, take sockets from
it, and read files again after SIGHUP."""
import contextlib
import hashlib
import os
import pathlib
import re
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../launcher"))
import harness  # noqa: E402
import frozen  # noqa: E402
import journald  # noqa: E402
from several_daemons import wait_until  # noqa: E402

# Sets the pids of the variables to the process that becomes the service, like systemd.
FOR_ITSELF = 'WATCHDOG_PID=$$ LISTEN_PID=$$; export WATCHDOG_PID LISTEN_PID; exec "$0" "$@"'


class ServiceCase(harness.Case):
    def setUp(self):
        self.manager = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.addCleanup(self.manager.close)
        self.notify_path = os.path.join(self.scratch(), "notify")
        self.manager.bind(self.notify_path)
        self.manager.settimeout(harness.TIMEOUT)

    def told(self):
        """Waits for the next datagram. Returns its assignments."""
        return dict(line.split("=", 1) for line in self.manager.recv(65536).decode().splitlines())

    def hear_all(self):
        """Reads and drops the messages that have come so far."""
        self.manager.setblocking(False)
        with contextlib.suppress(BlockingIOError):
            while True:
                self.manager.recv(65536)

    def service(self, program, *args, fds=(), **variables):
        env = harness.environment(NOTIFY_SOCKET=self.notify_path, **variables)
        if fds:
            env["LISTEN_FDS"] = str(len(fds))
        def place():
            for i, fd in enumerate(fds):
                os.dup2(fd, 3 + i)
        process = subprocess.Popen(["sh", "-c", FOR_ITSELF, program, *args], env=env, preexec_fn=place, text=True,
                                   pass_fds=[3 + i for i in range(len(fds))], stdin=subprocess.DEVNULL,
                                   stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        self.addCleanup(self._end, process)
        return process

    def daemon(self, *args, **more):
        """Starts a daemon that serves."""
        daemon = self.service(harness.DDPRUND, *args, **more)
        told = self.told()
        self.assertEqual(told["READY"], "1")
        address = re.search(r"listening on (\S+?:\d+)", told["STATUS"])[1]
        return daemon, address, told["STATUS"]

    def job(self, address, *flags):
        """Starts a job that runs until somebody writes to self.gate."""
        self.gate = os.path.join(self.scratch(), "gate")
        os.mkfifo(self.gate)
        job = self.start(f"--rdzv-endpoint={address}", *flags, "sh", "-c", 'echo up; cat "$0"', self.gate)
        self.assertEqual(job.stdout.readline(), "up\n")
        return job

    def listener(self):
        bound = socket.socket()
        self.addCleanup(bound.close)
        bound.bind(("127.0.0.1", 0))
        bound.listen(16)
        return bound, "{}:{}".format(*bound.getsockname())


class Notifications(ServiceCase):
    def test_it_is_ready_when_it_serves_and_says_that_it_stops(self):
        daemon, address, status = self.daemon("--listen=127.0.0.1:0")
        self.assertRegex(status, r"^listening on 127\.0\.0\.1:\d+; 0 jobs$")
        socket.create_connection(address.split(":"), 10).close()
        daemon.terminate()
        self.assertEqual(self.told()["STOPPING"], "1")
        self.assertEqual(self.finish(daemon).returncode, 0)

    def test_a_manager_in_the_abstract_name_space(self):
        self.manager.close()
        self.manager = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.addCleanup(self.manager.close)
        name = "ddprun-test-" + os.path.basename(os.path.dirname(self.notify_path))
        self.manager.bind("\0" + name)
        self.manager.settimeout(harness.TIMEOUT)
        self.notify_path = "@" + name
        self.daemon("--listen=127.0.0.1:0")

    def test_a_start_that_fails_is_never_ready(self):
        _, address = self.listener()
        done = self.finish(self.service(harness.DDPRUND, f"--listen={address}"))
        self.check_one_line(done, "in use by", code=done.returncode)
        self.manager.setblocking(False)
        self.assertRaises(BlockingIOError, self.manager.recv, 1)

    def test_the_watchdog_hears_from_the_event_loop(self):
        daemon, address, _ = self.daemon("--listen=127.0.0.1:0", WATCHDOG_USEC="300000")
        for _ in range(3):
            self.manager.settimeout(0.3 + 2)  # 2 s more, for a slow machine
            self.assertEqual(self.told()["WATCHDOG"], "1")
        self.job(address)
        wait_until(lambda: self.told()["STATUS"].endswith("; 1 job"), "the status names the job")
        daemon.send_signal(signal.SIGSTOP)
        wait_until(lambda: "T (stopped)" in pathlib.Path(f"/proc/{daemon.pid}/status").read_text(), "it stands still")
        self.hear_all()
        self.manager.settimeout(1)
        self.assertRaises(TimeoutError, self.manager.recv, 1)
        daemon.send_signal(signal.SIGCONT)

    def test_a_standing_event_loop_is_silent_though_other_threads_run(self):
        daemon, _, _ = self.daemon("--listen=127.0.0.1:0", f"--state-dir={self.scratch()}", WATCHDOG_USEC="300000")
        others = [thread for thread in os.listdir(f"/proc/{daemon.pid}/task") if thread != str(daemon.pid)]
        self.assertTrue(others)  # e.g. the journal's thread
        with frozen.thread(daemon.pid):
            for thread in others:
                with open(f"/proc/{daemon.pid}/task/{thread}/stat", encoding="ascii") as stat:
                    self.assertIn(stat.read().rpartition(")")[2].split()[0], "SRD")
            self.hear_all()
            self.manager.settimeout(1)
            self.assertRaises(TimeoutError, self.manager.recv, 1)
        self.manager.settimeout(harness.TIMEOUT)
        self.assertEqual(self.told()["WATCHDOG"], "1")

    def test_there_is_no_watchdog_without_a_limit_or_for_another_process(self):
        env = harness.environment(NOTIFY_SOCKET=self.notify_path, WATCHDOG_USEC="100000", WATCHDOG_PID="1")
        daemon = subprocess.Popen([harness.DDPRUND, "--listen=127.0.0.1:0"], env=env, stderr=subprocess.DEVNULL)
        self.addCleanup(lambda: (daemon.kill(), daemon.wait()))
        self.assertEqual(self.told()["READY"], "1")
        self.manager.settimeout(0.5)
        self.assertRaises(TimeoutError, self.manager.recv, 1)

    def test_an_invalid_variable_is_one_line(self):
        for variables, said in ((dict(WATCHDOG_USEC="soon"), "WATCHDOG_USEC='soon' is no number"),
                                (dict(LISTEN_FDS="x"), "LISTEN_FDS='x' is no number"),
                                (dict(LISTEN_FDS="99999"), "LISTEN_FDS=99999: at most"),
                                (dict(LISTEN_FDS="7"), "is not open")):
            with self.subTest(variables=variables):
                done = self.finish(self.service(harness.DDPRUND, "--listen=127.0.0.1:0", **variables))
                self.check_one_line(done, said)

    def test_ddprun_speaks_to_its_manager_and_its_workers_cannot(self):
        seen = os.path.join(self.scratch(), "env")
        job = self.service(harness.DDPRUN, "--standalone", "sh", "-c", f'env >"{seen}.$RANK"; echo up; kill -STOP $$',
                           WATCHDOG_USEC="400000", LISTEN_FDNAMES="x")
        self.assertEqual(self.told()["READY"], "1")
        self.assertEqual(job.stdout.readline(), "up\n")
        wait_until(lambda: "runs, node rank 0" in self.told().get("STATUS", ""), "the status has the round")
        with open(f"{seen}.0") as text:
            variables = text.read()
        self.assertIn("RANK=0\n", variables)
        self.assertNotRegex(variables, "(?m)^(NOTIFY_SOCKET|WATCHDOG_|LISTEN_)")
        job.terminate()
        wait_until(lambda: "STOPPING" in self.told(), "it says that it stops")


class Sockets(ServiceCase):
    def test_the_port_that_the_manager_holds_outlives_it(self):
        bound, address = self.listener()
        # The passed socket's address counts, not this --listen.
        daemon, served, _ = self.daemon("--listen=127.0.0.1:1", fds=[bound.fileno()])
        self.assertEqual(served, address)
        self.assertEqual(self.ddprun(f"--rdzv-endpoint={address}", "true").returncode, 0)
        daemon.kill()
        daemon.wait()
        job = self.start(f"--rdzv-endpoint={address}", "true")  # the socket doesn't refuse its connection meanwhile
        self.daemon(fds=[bound.fileno()])
        done = self.finish(job, code=0)
        self.assertNotIn("refused", done.text)

    def test_two_sockets(self):
        first, second = self.listener(), self.listener()
        _, _, status = self.daemon(fds=[first[0].fileno(), second[0].fileno()])
        self.assertIn(f"listening on {first[1]}, {second[1]}", status)
        for _, address in (first, second):
            self.assertEqual(self.ddprun(f"--rdzv-endpoint={address}", "true").returncode, 0)

    def test_the_first_connection_starts_it(self):
        if not shutil.which("systemd-socket-activate"):
            self.skipTest("systemd-socket-activate is missing")
        port = harness.free_port()
        activator = subprocess.Popen(["systemd-socket-activate", f"--listen=127.0.0.1:{port}", harness.DDPRUND],
                                     env=harness.environment(), text=True, stdout=subprocess.PIPE,
                                     stderr=subprocess.PIPE)
        self.addCleanup(self._end, activator)
        self.assertIn("Listening on", activator.stderr.readline())
        self.ddprun(f"--rdzv-endpoint=127.0.0.1:{port}", "true", code=0)

    def test_a_socket_that_takes_no_connections_is_one_line(self):
        datagram = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        unbound, pair = socket.socket(), socket.socketpair()
        with open("/dev/null") as file:
            for other, kind in ((datagram, "a UDP socket"), (unbound, "a TCP socket that is connected, or only bound"),
                                (pair[0], "a Unix socket"), (file, "/dev/null")):
                with self.subTest(other=other):
                    done = self.finish(self.service(harness.DDPRUND, fds=[other.fileno()], LISTEN_FDNAMES="odd"))
                    self.check_one_line(done, f"LISTEN_FDS: descriptor 3 ('odd') is {kind}, and no TCP socket that listens")
        for each in (datagram, unbound, *pair):
            each.close()


class Reload(ServiceCase):
    def reload(self, daemon):
        daemon.send_signal(signal.SIGHUP)
        told = self.told()
        self.assertEqual(told["RELOADING"], "1")
        self.assertGreater(int(told["MONOTONIC_USEC"]), 0)
        self.assertEqual(self.told()["READY"], "1")

    def certificate_of(self, address):
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        host, port = address.split(":")
        with socket.create_connection((host, int(port)), 10) as plain, context.wrap_socket(plain) as wrapped:
            return hashlib.sha256(wrapped.getpeercert(binary_form=True)).hexdigest()

    def test_new_certificates_are_for_new_connections(self):
        certs = self.certs()
        daemon, address, _ = self.daemon("--listen=127.0.0.1:0", *self.tls_server(certs))
        before = self.certificate_of(address)
        job = self.job(address, f"--tls-ca={certs}/ca.pem")
        newer = self.certs()
        for name in ("server.pem", "server.key"):
            os.replace(f"{newer}/{name}", f"{certs}/{name}")
        self.assertEqual(self.certificate_of(address), before)
        self.reload(daemon)
        self.assertNotEqual(self.certificate_of(address), before)
        self.ddprun(f"--rdzv-endpoint={address}", f"--tls-ca={newer}/ca.pem", "true", code=0)
        open(self.gate, "w").close()
        done = self.finish(job)  # the earlier job went on
        self.assertEqual(done.returncode, 0, done.text)

    def test_a_new_authority_of_clients_is_for_new_connections(self):
        certs, newer = self.certs(), self.certs()
        clients = os.path.join(self.scratch(), "clients.pem")
        shutil.copy(f"{certs}/ca.pem", clients)
        daemon, address, _ = self.daemon("--listen=127.0.0.1:0", *self.tls_server(certs), "--tls-verify-client",
                                         f"--tls-ca={clients}")
        known, stranger = ([f"--rdzv-endpoint={address}", f"--tls-ca={certs}/ca.pem", *self.tls_client(of)]
                           for of in (certs, newer))
        job = self.job(address, *known[1:])
        self.assertEqual(self.ddprun(*stranger, "true").returncode, 2)
        shutil.copy(f"{newer}/ca.pem", clients + ".new")
        os.replace(clients + ".new", clients)
        self.reload(daemon)
        self.ddprun(*stranger, "true", code=0)
        self.assertEqual(self.ddprun(*known, "true").returncode, 2)
        open(self.gate, "w").close()
        done = self.finish(job)  # the earlier job went on
        self.assertEqual(done.returncode, 0, done.text)

    def test_a_new_token(self):
        token = self.token("the token of before, long enough")
        daemon, address, _ = self.daemon("--listen=127.0.0.1:0", f"--token-file={token}")
        newer = self.token("another token that is long enough")
        shutil.copy(newer, token + ".new")
        os.chmod(token + ".new", 0o600)
        older = self.token("the token of before, long enough")
        os.replace(token + ".new", token)
        self.reload(daemon)
        self.assertEqual(self.ddprun(f"--rdzv-endpoint={address}", f"--token-file={newer}", "true").returncode, 0)
        self.assertEqual(self.ddprun(f"--rdzv-endpoint={address}", f"--token-file={older}", "true").returncode, 2)

    def test_a_file_that_can_not_be_used_changes_nothing(self):
        certs, token = self.certs(), self.token()
        daemon, address, _ = self.daemon("--listen=127.0.0.1:0", f"--token-file={token}", *self.tls_server(certs))
        before = self.certificate_of(address)
        os.replace(f"{self.certs()}/server.pem", f"{certs}/server.pem")  # this certificate has another key
        self.reload(daemon)
        for line in iter(daemon.stderr.readline, ""):
            if "SIGHUP" in line:
                break
        self.assertRegex(line, r"error: got SIGHUP: .*server\.(pem|key).*what was read before stays in force")
        self.assertEqual(self.certificate_of(address), before)
        flags = (f"--rdzv-endpoint={address}", f"--token-file={token}", f"--tls-ca={certs}/ca.pem")
        self.assertEqual(self.ddprun(*flags, "true").returncode, 0)


class Journal(ServiceCase):
    """The lines of a unit in the journal (docs/systemd.md, "The log")."""

    def setUp(self):
        super().setUp()
        self.journald = journald.Journald(self)

    def entries(self, *matches):
        return self.journald.entries(*matches)

    def in_journal(self, *command):
        return self.journald.start(*command, env=harness.environment(NOTIFY_SOCKET=self.notify_path))

    def test_lines_of_the_log_have_priorities(self):
        daemon = self.in_journal(harness.DDPRUND, "--listen=127.0.0.1:0")
        address = re.search(r"listening on (\S+?:\d+)", self.told()["STATUS"])[1]
        self.ddprun(f"--rdzv-endpoint={address}", "--rdzv-id=of-mine", "false", code=1)
        daemon.terminate()
        self.assertEqual(daemon.wait(harness.TIMEOUT), 0)
        first, *others = self.entries("_TRANSPORT=stdout")
        self.assertEqual((first["MESSAGE"], first["PRIORITY"]), (f"listening on {address}", "6"))
        about = [entry["PRIORITY"] for entry in others if entry["MESSAGE"].startswith("job of-mine: ")]
        self.assertEqual(set(about), {"4", "6"})

    def test_ddprun_and_its_workers(self):
        # No worker fails before both have printed, because the end of one ends the other.
        script = ('echo "worker $RANK $TORCHELASTIC_RUN_ID"; : >"$0/$RANK"\n'
                  'until [ -e "$0/0" ] && [ -e "$0/1" ]; do sleep 0.02; done; exit 3')
        job = self.in_journal(harness.DDPRUN, "--standalone", "--nproc_per_node=2", "sh", "-c", script, self.scratch())
        self.assertEqual(job.wait(harness.TIMEOUT), 3)
        priorities = {entry["MESSAGE"]: entry["PRIORITY"] for entry in self.entries("_TRANSPORT=stdout")}
        output = [line for line in priorities if re.match(r"\[[01]\] worker ", line)]
        self.assertEqual(len(output), 2, priorities)
        self.assertEqual({priorities[line] for line in output}, {"6"})  # journald's default priority
        own = {line: priorities[line] for line in priorities if line.startswith("[ddprun]")}
        self.assertEqual([own[line] for line in own if "round 1 is over: rank " in line], ["4"], own)

    def test_a_line_that_ddprun_refuses_is_an_error(self):
        self.assertEqual(self.in_journal(harness.DDPRUN, "--nnodes=x", "true").wait(harness.TIMEOUT), 2)
        entry, = self.entries("_TRANSPORT=stdout")
        self.assertIn("--nnodes", entry["MESSAGE"])
        self.assertEqual(entry["PRIORITY"], "3")

    def test_a_start_that_fails_is_an_error(self):
        _, address = self.listener()
        self.assertEqual(self.in_journal(harness.DDPRUND, f"--listen={address}").wait(harness.TIMEOUT), 2)
        entry, = self.entries("_TRANSPORT=stdout")
        self.assertIn("in use by", entry["MESSAGE"])
        self.assertEqual(entry["PRIORITY"], "3")

    def test_a_redirected_stderr_is_not_the_journal(self):
        path = os.path.join(self.scratch(), "log")
        line = f'exec 2>"{path}"; exec "$0" "$@"'
        daemon = self.in_journal("sh", "-c", line, harness.DDPRUND, "--listen=127.0.0.1:0")
        self.assertEqual(self.told()["READY"], "1")
        daemon.terminate()
        self.assertEqual(daemon.wait(harness.TIMEOUT), 0)
        with open(path) as text:
            self.assertRegex(text.readline(), r" info: listening on 127")
        self.assertEqual(self.entries("_TRANSPORT=stdout"), [])


if __name__ == "__main__":
    harness.main()
