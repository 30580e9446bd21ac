#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tests ddprund's command line: help, version, bad flags, a port in use, and its clean end."""
import fcntl
import json
import os
import re
import resource
import signal
import socket
import subprocess
import sys
import threading
import unittest

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "..", "..", "launcher"))
import harness  # noqa: E402
import raw_agent  # noqa: E402


class CommandLine(harness.Case):
    def ended(self, *args):
        """Runs a ddprund that must end without serving."""
        return self.finish(self.start(*args, program=harness.DDPRUND), timeout=20)

    def refused(self, *args):
        done = self.ended(*args)
        self.check_one_line(done)
        self.assertEqual(done.stdout, "", done.text)
        self.assertTrue(done.stderr.startswith("ddprund: "), done.stderr)
        return done.stderr.rstrip("\n")

    def test_help(self):
        done = self.ended("--help")
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        self.assertIn("--listen", done.stdout)
        self.assertIn("127.0.0.1:29400", done.stdout)

    def test_version(self):
        done = self.ended("--version")
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        self.assertRegex(done.stdout, r"^ddprund \d+\.\d+\.\d+")

    def test_text_that_can_not_be_printed_is_told(self):
        for flag in ("--help", "--version", "--print-man"):
            with self.subTest(flag), open("/dev/full", "w", encoding="utf-8") as full:
                done = subprocess.run([harness.DDPRUND, flag], stdout=full, stderr=subprocess.PIPE, text=True, timeout=20)
                self.assertEqual((done.returncode, done.stderr),
                                 (74, "ddprund: can't write to stdout: No space left on device\n"))

    def test_a_token_that_can_not_be_taken_is_named_with_its_flag(self):
        self.assertTrue(self.refused("--listen=127.0.0.1:0", "--token-file=/none").startswith(
            "ddprund: --token-file: can't take the secret in /none: "))

    def test_it_says_so_or_serves_with_too_few_descriptors(self):
        """ddprund gets too few descriptors, by one or by more."""
        refused = 0
        for most in range(4, 12):
            with self.subTest(most):
                def few(most=most):
                    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
                daemon = self.start("--listen=127.0.0.1:0", program=harness.DDPRUND, preexec_fn=few)
                first = daemon.stderr.readline()
                if "listening on" in first:
                    daemon.terminate()
                done = self.finish(daemon, timeout=20)
                if "listening on" not in first:
                    refused += 1
                    self.assertEqual(done.returncode, 2, first)
                    self.assertRegex(first, r"^ddprund: .*ulimit -n")
                    self.assertEqual(done.stderr, "", first)
        self.assertGreater(refused, 0)

    @unittest.skipIf(os.environ.get("DDPRUN_SANITIZE"), "a sanitizer's own memory is more than that")
    def test_it_says_so_or_serves_without_room_for_one_thread_more(self):
        """ddprund gets too little memory, by a little or by more."""
        refused = 0
        for megabytes in range(16, 56, 4):
            with self.subTest(megabytes):
                def little(megabytes=megabytes):
                    resource.setrlimit(resource.RLIMIT_AS, (megabytes << 20, megabytes << 20))
                if subprocess.run([harness.DDPRUND, "--version"], preexec_fn=little, capture_output=True).returncode:
                    continue  # too little memory to reach main()
                daemon = self.start("--listen=127.0.0.1:0", f"--state-dir={self.scratch()}", program=harness.DDPRUND,
                                    preexec_fn=little)
                first = daemon.stderr.readline()
                if "listening on" in first:
                    daemon.terminate()
                done = self.finish(daemon, timeout=20)
                if "can't start the thread" in first:
                    refused += 1
                    self.assertEqual((done.returncode, done.stderr), (2, ""), first)
                elif "listening on" not in first:  # the memory ran out before that thread
                    self.assertGreater(done.returncode, 0, first + done.text)
                    self.assertNotIn("terminate called", first)
        self.assertGreater(refused, 0)

    def test_an_unknown_flag_gets_a_suggestion(self):
        self.assertIn("unknown flag --lisen (did you mean --listen?)", self.refused("--lisen=x:1"))

    def test_all_unknown_flags_are_told(self):
        done = self.ended("--lisen=x:1", "--zzz", "--verbos")
        self.assertEqual(done.returncode, 2, done.text)
        self.assertEqual([line.split()[3] for line in done.stderr.splitlines()], ["--lisen", "--zzz", "--verbos"])

    def test_all_values_that_cannot_be_are_told(self):
        flags = ["--tls-cert", "--listen", "--durability", "--keep-finished", "--watch-output", "--ha-lease", "--ha"]
        done = self.ended(*(word for flag in flags for word in (flag, "" if flag.startswith("--tls") else ":x:")))
        self.assertEqual(done.returncode, 2, done.text)
        self.assertEqual([line.split(": ")[1] for line in done.stderr.splitlines()], flags, done.stderr)

    def test_an_invalid_port_is_said(self):
        for flag in ("--listen=:99999", "--ha-name=a:99999", "--ha=etcd://a:99999/x"):
            flags = ["--ha=etcd://a:1/x", flag] if flag.startswith("--ha-name") else [flag]
            self.assertIn("port 99999 is above 65535", self.refused(*flags))

    def test_an_argument_is_refused(self):
        self.assertIn('takes no argument, got "x:1"', self.refused("x:1"))

    def test_a_bad_listen_is_named(self):
        for bad in ("x:y", "127.0.0.1:65536", "[::1", "a b", "a:1:2", ""):
            with self.subTest(bad):
                self.assertIn("--listen", self.refused("--listen", bad))

    def test_a_switch_that_is_neither_is_named(self):
        self.assertIn('--watch-output: "maybe" is neither on nor off', self.refused("--watch-output=maybe"))

    def test_the_flags_of_a_pair_are_gone_and_say_so(self):
        state = f"--state-dir={self.scratch()}"
        for flag in "--standby", "--standby-of":
            for flags in (f"{flag}=b:29400",), (state, flag, "b:29400"), (f"{flag}=", "--ha=etcd://e:1"):
                with self.subTest(flags):
                    self.assertEqual(f"ddprund: {flag} is gone: several ddprunds share an etcd, "
                                     "--ha=etcd://HOST:PORT,.../PREFIX (docs/ha.md)", self.refused(*flags).strip())

    def test_flags_of_ha_without_it_are_named(self):
        self.assertIn("--ha-lease: is for --ha; give that, too", self.refused("--ha-lease=5s"))

    def test_a_refusal_is_one_line_whatever_is_in_it(self):
        self.assertIn(r'--ha-name: "a\nb:1" is not HOST:PORT', self.refused("--ha=etcd://e:1", "--ha-name=a\nb:1"))

    def test_limits_given_twice_both_count(self):
        _, endpoint = self.ddprund("--limits=keys=500,bytes=7k", "--limits=keys=5", "--limits=connections=3")
        done = self.ddprunctl("status", "--json", f"--rdzv-endpoint={endpoint}")
        stores = json.loads(done.stdout)["stores"]["proxied"]
        self.assertEqual([stores[f"max_{name}"] for name in ("keys", "bytes", "connections")], [5, 7000, 3])
        self.assertIn('--limits: "x" is not keys=N', self.refused("--limits=keys=5", "--limits=x"))
        self.assertIn("takes no argument", self.refused("--limits", "keys=5", "keys=6"))

    def test_all_stores_take_half_of_the_memory_at_most_without_a_flag(self):
        _, endpoint = self.ddprund()
        done = self.ddprunctl("status", "--json", f"--rdzv-endpoint={endpoint}")
        memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        self.assertLessEqual(json.loads(done.stdout)["stores"]["proxied"]["max_bytes"], min(16 << 30, memory // 2))

    def test_jobs_per_client_are_so_many_and_one_more_is_refused(self):
        daemon, endpoint = self.ddprund("--jobs-per-client=1")
        at, go = [f"--rdzv-endpoint={endpoint}"], self.scratch() + "/go"
        first = self.start(*at, "--rdzv-id=first", "sh", "-c", f"echo ready; until [ -e {go} ]; do sleep 0.02; done")
        self.assertEqual(first.stdout.readline(), "ready\n")
        why = (f"jobs of user {os.getuid()} are as many as one user or address may have at once, 1 "
               "(ddprund --jobs-per-client=N)")
        self.check_one_line(self.ddprun(*at, "--rdzv-id=second", "true"), why, code=75)
        self.await_line(daemon, "refused an agent: " + why)
        self.write(os.path.dirname(go), "go", "")
        self.assertEqual(self.finish(first).returncode, 0)
        self.ddprun(*at, "--rdzv-id=second", "true", code=0)
        for bad in "0", "-1", "x", "":
            with self.subTest(bad):
                self.assertIn("--jobs-per-client", self.refused(f"--jobs-per-client={bad}"))

    def test_files_towards_etcd_are_named_by_their_own_flags(self):
        certs = self.certs()
        cert, key, ca = f"{certs}/client.pem", f"{certs}/client.key", f"--ha-ca={certs}/ca.pem"
        for flags, said in (
                (("--ha-ca=/nothing",), "--ha-ca=/nothing: No such file"),
                ((ca, "--ha-cert=/nothing", f"--ha-key={key}"), "--ha-cert=/nothing: No such file"),
                ((ca, f"--ha-cert={cert}", "--ha-key=/"), "--ha-key=/: it is a directory"),
                ((ca, f"--ha-cert={cert}"), f"--ha-cert={cert}: its key is missing (--ha-key)"),
                ((ca, f"--ha-key={key}"), f"--ha-key={key}: its certificate is missing (--ha-cert)"),
                ((ca, f"--ha-cert={cert}", f"--ha-key={certs}/server.key"),
                 f"--ha-key={certs}/server.key: is not the key of --ha-cert={cert}"),
                ((f"--ha-cert={cert}", f"--ha-key={key}"), "authority is missing (--ha-ca)")):
            with self.subTest(flags=flags):
                line = self.refused("--listen=127.0.0.1:0", "--ha=etcd://127.0.0.1:1", *flags)
                self.assertIn(said, line)
                self.assertNotIn("--tls", line)

    def test_a_port_alone_is_no_host_and_behind_a_colon_it_is_on_all_interfaces(self):
        port = harness.free_port()
        self.assertIn(f'"{port}" is no host; for a port on all interfaces give :{port}',
                      self.refused("--listen", str(port)))
        daemon, endpoint = self.ddprund("--insecure", f"--listen=:{port}")  # the last --listen counts
        self.assertRegex(endpoint, rf"^(\[::\]|0\.0\.0\.0):{port}$")
        socket.create_connection(("127.0.0.2", port), 10).close()
        daemon.terminate()
        self.assertEqual(self.finish(daemon, timeout=10).returncode, 0)

    def test_it_says_once_per_address_beyond_loopback_who_can_come_in(self):
        certs, token = self.certs(), f"--token-file={self.token()}"
        client, tls, to_tls = self.tls_client(certs), self.tls_server(certs), [f"--tls-ca={certs}/ca.pem"]
        mutual = [*tls, *to_tls, "--tls-verify-client"]
        open_to_all = ("warning: anyone who reaches {} can join and end jobs and read their keys: use it on a trusted "
                       "network only, or with --token-file")
        only = "info: only agents that prove to have "
        for flags, of_clients, line in (
                (["--insecure"], [], open_to_all),
                (tls, to_tls, open_to_all),
                ([token], [token], only + "the token can join jobs at {}; connections are not encrypted (--tls-cert)"),
                ([token, *tls], [token, *to_tls], only + "the token can join jobs at {}, over TLS"),
                (mutual, [*to_tls, *client], only + "the certificate can join jobs at {}, over TLS"),
                ([token, *mutual], [token, *to_tls, *client],
                 only + "the token and the certificate can join jobs at {}, over TLS")):
            for listen in ("0.0.0.0:0", "localhost:0"):
                with self.subTest(flags=flags, listen=listen):
                    daemon, endpoint = self.ddprund(f"--listen={listen}", *flags)
                    port = endpoint.rsplit(":", 1)[1]
                    for _ in range(2):  # joining nodes log no further line
                        self.ddprun(f"--rdzv-endpoint=127.0.0.1:{port}", *of_clients, "true", code=0)
                    daemon.terminate()
                    said = daemon.stderr.read()
                    told = [each.split(" ", 1)[1] for each in said.splitlines() if " can join " in each]
                    expected = [] if "localhost" in listen else [line.format(endpoint)]
                    self.assertEqual(told, expected, said)

    def daemon_among(self, hosts, prepare, *args):
        """Runs ddprund in a network of its own, with `hosts` as /etc/hosts."""
        script = f'mount --bind "$0" /etc/hosts && ip link set lo up && {prepare} && exec "$@"'
        inside = ["unshare", "--net", "--mount", "sh", "-c", script, hosts]
        if subprocess.run([*inside, "true"], capture_output=True).returncode != 0:
            self.skipTest("no name spaces")
        daemon = subprocess.Popen([*inside, harness.DDPRUND, *args], env=harness.environment(), text=True,
                                  stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        self.addCleanup(self._end, daemon)
        return daemon

    def test_a_name_of_two_addresses_beyond_loopback_and_one_of_it_is_two_lines(self):
        hosts = self.write(self.scratch(), "hosts", "10.77.0.1 many\n10.77.0.2 many\n127.0.0.1 many\n")
        daemon = self.daemon_among(hosts, "ip address add 10.77.0.1/32 dev lo && ip address add 10.77.0.2/32 dev lo",
                                   "--insecure", "--listen=many:29400")
        said = "".join(daemon.stderr.readline() for _ in range(5))  # three addresses, of which two log a further line
        daemon.terminate()
        said += daemon.stderr.read()
        self.assertEqual(sorted(re.findall(r"anyone who reaches (\S+) can join and end jobs", said)),
                         ["10.77.0.1:29400", "10.77.0.2:29400"], said)
        self.assertEqual(sorted(re.findall(r"listening on (\S+)", said)),
                         ["10.77.0.1:29400", "10.77.0.2:29400", "127.0.0.1:29400"], said)

    def test_it_wants_a_token_or_tls_beyond_loopback_or_to_be_told_that_it_is_insecure(self):
        for listen in ("0.0.0.0:0", ":0", *([f"{self.own_address()}:0"] if self.own_address() else [])):
            with self.subTest(listen=listen):
                line = self.refused(f"--listen={listen}")
                self.assertIn("without --token-file or TLS", line)
                self.assertIn("--insecure", line)

    @staticmethod
    def own_address():
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            try:
                probe.connect(("192.0.2.1", 9))  # this sends nothing
                return probe.getsockname()[0]
            except OSError:
                return None

    def test_a_hangup_and_a_schedulers_warning_do_not_end_it(self):
        daemon, _ = self.ddprund()
        daemon.send_signal(signal.SIGHUP)
        self.assertIn("got SIGHUP: no file to read again; serving on", daemon.stderr.readline())
        for number in (signal.SIGUSR1, signal.SIGUSR2):
            daemon.send_signal(number)
            self.assertIn(f"got {number.name}: serving on", daemon.stderr.readline())
        daemon.send_signal(signal.SIGQUIT)
        done = self.finish(daemon, timeout=10, code=0)
        self.assertIn("stopping: SIGQUIT", done.stderr)

    def test_it_names_the_jobs_that_its_end_leaves_alone(self):
        daemon, endpoint = self.ddprund()
        job = self.start(f"--rdzv-endpoint={endpoint}", "--rdzv-id=left", "--rendezvous-lost-timeout=1",
                         "--shutdown-timeout=1", "sh", "-c", "echo ready; exec sleep 600")
        self.assertEqual(job.stdout.readline(), "ready\n")
        daemon.terminate()
        done = self.finish(daemon, timeout=10)
        self.assertIn("jobs lose their rendezvous: left (", done.stderr)
        self.assertEqual(self.finish(job, timeout=20).returncode, 69)

    def test_an_address_of_another_machine_is_refused(self):
        self.assertIn("192.0.2.77 is not an address of this machine",
                      self.refused("--listen=192.0.2.77:1"))

    def test_a_port_in_use_names_its_holder(self):
        with socket.create_server(("127.0.0.1", 0)) as foreign:
            port = foreign.getsockname()[1]
            line = self.refused(f"--listen=127.0.0.1:{port}")
        self.assertIn(f"127.0.0.1:{port}", line)
        self.assertIn("in use", line)
        self.assertIn(f"pid {os.getpid()}", line)

    def test_sigterm_and_sigint_end_it_cleanly(self):
        for number in (signal.SIGTERM, signal.SIGINT):
            daemon, endpoint = self.ddprund()
            self.assertRegex(endpoint, r"^127\.0\.0\.1:[1-9]\d*$")
            daemon.send_signal(number)
            done = self.finish(daemon, timeout=10)
            self.assertEqual((done.returncode, done.stdout), (0, ""), done.text)
            self.assertIn("stopping", done.stderr)

    def test_a_log_that_nobody_reads_does_not_end_it(self):
        daemon, endpoint = self.ddprund("--verbose")
        port = int(endpoint.rsplit(":", 1)[1])
        daemon.stderr.close()
        for _ in range(3):
            with socket.create_connection(("127.0.0.1", port), 10) as hostile:
                hostile.sendall(b"\xff")
                try:  # the connection is closed after its line was logged
                    self.assertEqual(hostile.recv(1), b"")
                except ConnectionResetError:
                    pass
        self.assertIsNone(daemon.poll())
        daemon.send_signal(signal.SIGTERM)
        self.assertEqual(daemon.wait(10), 0)

    def test_a_log_whose_reader_is_stuck_does_not_stop_it(self):
        daemon, endpoint = self.ddprund()
        port = int(endpoint.rsplit(":", 1)[1])
        size = fcntl.fcntl(daemon.stderr, fcntl.F_SETPIPE_SZ, 4096)
        for _ in range(2 * size // 60):  # each of these logs a line of more than 60 bytes
            with socket.create_connection(("127.0.0.1", port), 10) as hostile:
                hostile.sendall(b"\xff")
                try:
                    self.assertEqual(hostile.recv(1), b"")
                except ConnectionResetError:
                    pass
        with socket.create_connection(("127.0.0.1", port), 10) as client:
            client.sendall(b"GET /healthz HTTP/1.0\r\n\r\n")
            self.assertIn(b"200 OK", client.recv(1000))
        self.assertIn("speaks neither", daemon.stderr.readline())  # this read takes all bytes of the pipe at once
        daemon.send_signal(signal.SIGTERM)
        done = self.finish(daemon, timeout=10, code=0)
        self.assertRegex(done.stderr, r"warning: \d+ line\(s\) of this log were dropped")
        self.assertIn("stopping", done.stderr)

    def check_limit_of_lines(self, attack, text):
        """Carries `attack` out 700 times. Each time gives a warning with `text`."""
        daemon, endpoint = self.ddprund()
        lines = []
        reader = threading.Thread(target=lambda: lines.extend(daemon.stderr))
        reader.start()
        for _ in range(700):
            attack(endpoint)
        daemon.send_signal(signal.SIGTERM)
        self.assertEqual(daemon.wait(timeout=10), 0)
        reader.join()
        warnings = [line for line in lines if text in line]
        self.assertGreaterEqual(len(warnings), 300)
        self.assertLess(len(warnings), 600)  # 5 a second more
        self.assertEqual("".join(lines).count("are left out where they are more than 5 a second (said once)"), 1)
        self.assertIn("stopping", lines[-1])

    def test_a_flood_of_bad_peers_does_not_fill_the_log(self):
        def attack(endpoint):
            with socket.create_connection(("127.0.0.1", int(endpoint.rsplit(":", 1)[1])), 10) as hostile:
                hostile.sendall(b"\xff")
                try:
                    hostile.recv(1)
                except ConnectionResetError:
                    pass
        self.check_limit_of_lines(attack, "closed the connection")

    def test_a_flood_of_refused_agents_does_not_fill_the_log(self):
        def attack(endpoint):
            hostile = raw_agent.RawAgent(endpoint)
            hostile.tell({**raw_agent.JOIN, "run_id": "job", "session": "made up"})
            hostile.message("refused")
            hostile.socket.close()
        self.check_limit_of_lines(attack, "refused an agent: the rendezvous does not know this agent")

    def test_a_peer_cannot_forge_lines_of_the_log(self):
        daemon, endpoint = self.ddprund()
        key = b"/a\nforged\x1b[2J"
        with socket.create_connection(("127.0.0.1", int(endpoint.rsplit(":", 1)[1])), 10) as hostile:
            def string(text):
                return len(text).to_bytes(8, "little") + text
            hostile.sendall(b"\0" + (0x3C85F7CE).to_bytes(4, "little") + b"\1" + string(key) +
                            string(b"no number") + b"\4" + string(key) + bytes(8))  # SET, ADD
            self.assertEqual(hostile.recv(1), b"")
        self.assertIn(r'the value at "/a\nforged\x1b[2J" is not a number', daemon.stderr.readline())

    def test_it_serves_on_when_out_of_descriptors(self):
        def few():
            resource.setrlimit(resource.RLIMIT_NOFILE, (40, 40))
        daemon, endpoint = self.ddprund(preexec_fn=few)
        address = ("127.0.0.1", int(endpoint.rsplit(":", 1)[1]))
        silent = [socket.create_connection(address, 10) for _ in range(60)]  # the daemon closes the oldest ones
        for _ in iter(lambda: "nearly all descriptors are in use" in daemon.stderr.readline(), True):
            pass
        hello = b"\0" + (0x3C85F7CE).to_bytes(4, "little") + b"\x0d1234"  # VALIDATE, PING
        for client in silent[-20:]:
            client.sendall(hello)
        self.assertRegex(daemon.stderr.readline(), "closed the connection of 127.0.0.1:.*: a c10d store client, "
                                                   "and the descriptors that are left are for agents")
        for client in silent:
            client.close()
        def is_served():
            try:
                with socket.create_connection(address, 10) as client:
                    client.sendall(hello)
                    return client.recv(4) == b"1234"
            except ConnectionResetError:
                return False  # the daemon may not have noticed yet that some connections have ended
        harness.wait_until(is_served, "a store's client is served again")
        self.assertIsNone(daemon.poll())

    def test_localhost_is_served_where_the_kernel_has_no_ipv6(self):
        """Acts like a container: /etc/hosts has ::1, but no interface has it."""
        hosts = self.write(self.scratch(), "hosts", "127.0.0.1 localhost\n::1 localhost\n")
        daemon = self.daemon_among(hosts, "sysctl -qw net.ipv6.conf.all.disable_ipv6=1", "--listen=localhost:0")
        said = daemon.stderr.readline() + daemon.stderr.readline()
        self.assertRegex(said, r"can't listen on \[::1\]:\d+: .*\n.*listening on 127\.0\.0\.1:\d+")

    def test_closed_standard_streams_are_no_sockets(self):
        """Otherwise the log's lines would go to a connection that got such a descriptor."""
        port = harness.free_port()
        daemon = subprocess.Popen(["sh", "-c", 'exec "$0" "$@" <&- >&- 2>&-', harness.DDPRUND,
                                   f"--listen=127.0.0.1:{port}"], env=harness.environment())
        self.addCleanup(lambda: (daemon.kill(), daemon.wait()))

        def listens():
            with socket.socket() as probe:
                return probe.connect_ex(("127.0.0.1", port)) == 0
        harness.wait_until(listens, "it listens")
        self.assertEqual([os.readlink(f"/proc/{daemon.pid}/fd/{fd}") for fd in range(3)],
                         ["/dev/null"] * 3)


if __name__ == "__main__":
    harness.main()
