#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tests jobs over TLS: right certificates, and wrong ones, which give one line each. A man in the middle is refused."""
import glob
import os
import re
import resource
import signal
import socket
import ssl
import stat
import subprocess
import sys
import threading

import harness
import relay
from store_client import CLIENT

SH = ["sh", "-c", harness.SHOW]
FAKETIME = glob.glob("/usr/lib/*/faketime/libfaketime.so.1")


class OneHost(harness.Case):
    def test_a_job_and_a_page_over_tls(self):
        certs, token = self.certs(), self.token()
        for more in ([], [f"--token-file={token}"]):
            _, endpoint = self.ddprund(*self.tls_server(certs), *more)
            port = endpoint.rsplit(":", 1)[1]
            for host in ("127.0.0.1", "localhost"):
                done = self.ddprun(f"--rdzv-endpoint={host}:{port}", "--rdzv-conf=is_host=0",
                                   f"--tls-ca={certs}/ca.pem", *more, *SH, code=0)
                self.assertIn("rank=0", done.stdout)
            done = self.ddprunctl("jobs", f"--rdzv-endpoint={endpoint}", f"--tls-ca={certs}/ca.pem", *more, code=0)

    def test_no_word_of_a_job_is_on_the_wire(self):
        """Agents, their workers' stores and ddprunctl send these words. Without TLS each one is seen on the wire."""
        certs, token = self.certs(), self.token("a-token-to-be-found-nowhere")
        worker = CLIENT + ('set(b"a-key-to-be-found", b"a-value-to-be-found"); add(b"/more", 1)\n'
                           'sys.exit("a-report-to-be-found")\n')
        # Each word is so long that random bytes don't contain it by chance.
        words = [b"a-job-to-be-found", b"a-key-to-be-found", b"a-value-to-be-found", b"a-report-to-be-found",
                 f'"{socket.gethostname()}"'.encode(), sys.executable.encode(), b'"type":"join"', b"/v1/agent",
                 b"proof 1 ", b"GET /v1/jobs ", b"Authorization: DDPRUN-HMAC", b'"run_id":']
        for server, client in (([], []), (self.tls_server(certs), [f"--tls-ca={certs}/ca.pem"])):
            _, endpoint = self.ddprund(*server, f"--token-file={token}")
            between = relay.Relay(int(endpoint.rsplit(":", 1)[1]), records=True)
            self.addCleanup(between.close)
            there = [f"--rdzv-endpoint=127.0.0.1:{between.port}", f"--token-file={token}", *client]
            done = self.ddprun(*there, "--rdzv-id=a-job-to-be-found", "--rdzv-conf=is_host=0", sys.executable, "-c",
                               worker, "3", code=1)
            self.assertIn("a-report-to-be-found", done.stderr)
            for page in ("jobs", "status"):
                done = self.ddprunctl(page, *there, code=0)
            between.close()
            carried = [bytes(each) for each in between.carried]
            everything = b"".join(carried) + b"".join(map(relay.unmasked, carried))
            self.assertGreater(len(everything), 10_000)
            found = [word for word in words if word in everything]
            self.assertEqual(found, [] if client else words, f"TLS: {bool(client)}")
            if client:
                self.assertEqual({each[:2] for each in carried if each}, {b"\x16\x03"})

    def job_that_waits(self, endpoint, *flags):
        """Starts a job, and waits until it runs. It ends when the file at the returned path exists."""
        place = self.scratch()
        job = self.start(f"--rdzv-endpoint={endpoint}", "--rdzv-conf=is_host=0", *flags, "sh", "-c",
                         f"echo $DDPRUN_ROUND; until [ -e {place}/go ]; do sleep 0.02; done")
        self.assertEqual(job.stdout.readline(), "1\n")
        return job, place

    def test_a_byte_that_is_changed_on_the_way_ends_that_connection_alone(self):
        certs = self.certs()
        daemon, endpoint = self.ddprund(*self.tls_server(certs), "--verbose")
        between = relay.Relay(int(endpoint.rsplit(":", 1)[1]))
        self.addCleanup(between.close)
        job, place = self.job_that_waits(f"127.0.0.1:{between.port}", f"--tls-ca={certs}/ca.pem")
        between.change_a_byte()
        harness.wait_until(between.has_changed_it, "something is said")
        self.assertIn("the rendezvous is back", next(line for line in job.stderr if "is back" in line))
        self.write(place, "go", "")
        done = self.finish(job)
        self.assertEqual((done.returncode, done.stdout), (0, ""), done.text)  # there was no further round
        self.assertIsNone(daemon.poll())

    def test_another_authoritys_in_its_place_ends_no_job(self):
        certs, others, state, port = self.certs(), self.certs(), self.scratch() + "/state", harness.free_port()
        at = f"--listen=127.0.0.1:{port}"
        daemon, endpoint = self.ddprund(at, *self.tls_server(certs), f"--state-dir={state}")
        job, place = self.job_that_waits(endpoint, f"--tls-ca={certs}/ca.pem")
        daemon.kill()
        daemon.wait()
        other, _ = self.ddprund(at, *self.tls_server(others))
        for _ in range(2):  # the agent connects again
            self.assertIn("no TLS (", next(line for line in other.stderr if "closed the connection" in line))
        other.kill()
        other.wait()
        self.ddprund(at, *self.tls_server(certs), f"--state-dir={state}")
        self.assertIn("the rendezvous is back", next(line for line in job.stderr if "is back" in line))
        self.write(place, "go", "")
        done = self.finish(job)
        self.assertEqual((done.returncode, done.stdout), (0, ""), done.text)

    def test_a_mismatch_of_tls_is_one_line(self):
        certs, others = self.certs(), self.certs("another.example")
        _, endpoint = self.ddprund(*self.tls_server(certs))
        at = [f"--rdzv-endpoint={endpoint}"]
        self.check_one_line(self.ddprun(*at, *SH), f"the rendezvous at {endpoint} wants TLS: give this ddprun --tls-ca")
        self.check_one_line(self.ddprunctl("jobs", *at), "wants TLS: give --tls-ca")
        self.check_one_line(self.ddprun(*at, f"--tls-ca={others}/ca.pem", *SH),
                     "can't be trusted: its certificate is of an authority that --tls-ca does not have")
        self.check_one_line(self.ddprunctl("jobs", *at, f"--tls-ca={others}/ca.pem"), "an authority that --tls-ca does not have")
        _, elsewhere = self.ddprund(*self.tls_server(others))
        self.check_one_line(self.ddprun(f"--rdzv-endpoint={elsewhere}", f"--tls-ca={others}/ca.pem", *SH),
                     "its certificate is not for 127.0.0.1")
        _, plain = self.ddprund()
        self.check_one_line(self.ddprun(f"--rdzv-endpoint={plain}", f"--tls-ca={certs}/ca.pem", *SH),
                     "speaks no TLS 1.3 there")

    def test_an_expired_certificate_is_one_line(self):
        if not FAKETIME or os.environ.get("DDPRUN_SANITIZE"):
            self.skipTest("needs libfaketime, and no sanitizer")
        certs = self.certs()
        _, endpoint = self.ddprund(*self.tls_server(certs))
        done = self.ddprun(f"--rdzv-endpoint={endpoint}", f"--tls-ca={certs}/ca.pem", *SH, LD_PRELOAD=FAKETIME[0],
                           FAKETIME="+400d", FAKETIME_DONT_FAKE_MONOTONIC="1", code=2)
        self.assertIn("can't be trusted: its certificate has expired", done.stderr.splitlines()[-1])
        daemon = self.start("--listen=127.0.0.1:0", *self.tls_server(certs), program=harness.DDPRUND,
                            LD_PRELOAD=FAKETIME[0], FAKETIME="+400d", FAKETIME_DONT_FAKE_MONOTONIC="1")
        self.assertIn(f"--tls-cert={certs}/server.pem: has expired, so the other side refuses it",
                      daemon.stderr.readline())
        daemon.kill()

    def test_clients_show_certificates_where_asked(self):
        certs, others = self.certs(), self.certs()
        daemon, endpoint = self.ddprund(*self.tls_server(certs), f"--tls-ca={certs}/ca.pem", "--tls-verify-client")
        at = [f"--rdzv-endpoint={endpoint}", f"--tls-ca={certs}/ca.pem"]
        self.ddprun(*at, *self.tls_client(certs), *SH, code=0)
        self.assertEqual(self.ddprunctl("jobs", *at, *self.tls_client(certs)).returncode, 0)
        self.check_one_line(self.ddprun(*at, *SH), "it wants a certificate of this side: --tls-cert and --tls-key")
        self.check_one_line(self.ddprun(*at, *self.tls_client(others), *SH),
                     "it does not know the authority of this side's certificate (--tls-cert)")
        daemon.terminate()
        said = self.finish(daemon).stderr
        self.assertIn("it has no certificate, and --tls-verify-client wants one", said)
        self.assertIn("its certificate is of an authority that --tls-ca does not have", said)

    def test_a_client_without_the_certificate_that_is_asked_gets_no_more_than_probes_and_without_tls(self):
        certs = self.certs()
        mutual = [*self.tls_server(certs), f"--tls-ca={certs}/ca.pem", "--tls-verify-client"]
        for more in ([], [f"--token-file={self.token()}"]):
            daemon, endpoint = self.ddprund(*mutual, *more)
            address = ("127.0.0.1", int(endpoint.rsplit(":", 1)[1]))

            def ask(path, context=None):
                """Returns the answer; "": the server closed the connection."""
                with socket.create_connection(address, 10) as plain:
                    try:
                        asked = context.wrap_socket(plain, server_hostname="localhost") if context else plain
                        with asked:
                            asked.sendall(f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
                            return asked.recv(4096).decode()
                    except OSError:
                        return ""
            without = ssl.create_default_context(cafile=f"{certs}/ca.pem")
            having = ssl.create_default_context(cafile=f"{certs}/ca.pem")
            having.load_cert_chain(f"{certs}/client.pem", f"{certs}/client.key")
            for path in ("/healthz", "/readyz", "/v1/jobs", "/v1/status", "/v1/agent"):
                with self.subTest(path=path, more=more):
                    self.assertEqual(ask(path, without), "")
                    is_open = path in ("/healthz", "/readyz")
                    self.assertIn(" 200 OK" if is_open else " 426 Upgrade Required", ask(path).split("\r\n")[0])
                    answer = "426" if path == "/v1/agent" else "401" if more and not is_open else "200"
                    self.assertIn(f" {answer} ", ask(path, having).split("\r\n")[0])
            self.assertIsNone(daemon.poll())

    def test_bad_files_are_one_line(self):
        certs, others = self.certs(), self.certs()
        shown = self.write(self.scratch(), "shown.key", open(f"{certs}/server.key", encoding="ascii").read())
        os.chmod(shown, 0o644)
        encrypted = self.scratch() + "/encrypted.key"
        subprocess.run(["openssl", "pkey", "-in", f"{certs}/server.key", "-aes256", "-passout", "pass:word", "-out",
                        encrypted], check=True, capture_output=True)
        os.chmod(encrypted, 0o600)
        exchanged = self.write(self.scratch(), "exchanged.pem", open(f"{certs}/server.pem", encoding="ascii").read())
        os.chmod(exchanged, 0o600)
        for flags, why in (
                ([f"--tls-cert={certs}/server.pem", f"--tls-key={encrypted}"], "is encrypted, and nobody is asked"),
                ([*self.tls_server(certs), f"--tls-ca={certs}/ca.pem"], "add --tls-verify-client, or leave it out"),
                ([f"--tls-cert={certs}/server.pem"], "its key is missing (--tls-key)"),
                ([f"--tls-cert={certs}/server.pem", f"--tls-key={others}/server.key"], f"is not the key of --tls-cert={certs}/server.pem"),
                ([f"--tls-cert={certs}/server.key", f"--tls-key={certs}/server.key"], "nothing of the kind"),
                ([f"--tls-cert={certs}/server.key", f"--tls-key={exchanged}"], "is it the certificate?"),
                ([f"--tls-cert={certs}/nothing", f"--tls-key={certs}/server.key"], f"--tls-cert={certs}/nothing: No such file"),
                ([f"--tls-cert={certs}/server.pem", f"--tls-key={shown}"], f"chmod 600 {shown}"),
                ([f"--tls-ca={certs}/ca.pem"], "--tls-cert and --tls-key"),
                ([*self.tls_server(certs), "--tls-verify-client"], "needs --tls-ca")):
            with self.subTest(flags):
                daemon = self.start("--listen=127.0.0.1:0", *flags, program=harness.DDPRUND)
                self.check_one_line(self.finish(daemon, timeout=20), why)
        for flags, why in (([f"--tls-ca={certs}/server.key"], "--tls-ca="), (self.tls_client(certs), "(--tls-ca)"),
                           ([f"--tls-ca={certs}/ca.pem", f"--tls-key={certs}/client.key"], "(--tls-cert)"),
                           ([f"--tls-ca={certs}/ca.pem"], "this node serves the rendezvous")):
            with self.subTest(flags):
                self.check_one_line(self.ddprun("--standalone", *flags, *SH), why)

    def rsa(self):
        """Makes a certificate with an RSA key. Returns both paths."""
        place = self.scratch()
        subprocess.run(["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-keyout", f"{place}/key", "-out",
                        f"{place}/cert", "-days", "2", "-subj", "/CN=x"], check=True, capture_output=True)
        os.chmod(f"{place}/key", 0o600)
        return f"{place}/cert", f"{place}/key"

    def test_a_key_that_is_not_the_certificates_is_refused_at_the_start_whatever_kinds_they_are(self):
        certs, (rsa_cert, rsa_key) = self.certs(), self.rsa()
        ec_cert, ec_key = f"{certs}/server.pem", f"{certs}/server.key"
        for cert, key in ((rsa_cert, ec_key), (ec_cert, rsa_key), (ec_cert, f"{certs}/client.key")):
            with self.subTest(cert=cert, key=key):
                why = f"--tls-key={key}: is not the key of --tls-cert={cert}"
                files = [f"--tls-cert={cert}", f"--tls-key={key}"]
                daemon = self.start("--listen=127.0.0.1:0", *files, program=harness.DDPRUND)
                self.check_one_line(self.finish(daemon, timeout=20), why)
                files.append(f"--tls-ca={certs}/ca.pem")
                self.check_one_line(self.ddprun("--standalone", *files, *SH), why)
                self.check_one_line(self.ddprunctl("jobs", "--rdzv-endpoint=127.0.0.1:1", *files), why)
        self.ddprund(f"--tls-cert={rsa_cert}", f"--tls-key={rsa_key}")

    def test_a_file_that_is_not_regular_is_refused_and_nobody_waits_for_it(self):
        certs, place = self.certs(), self.scratch()
        fifo = f"{place}/fifo"
        os.mkfifo(fifo, 0o600)
        pipe = os.pipe()  # like a shell's <(…): its writer may never end it
        self.addCleanup(lambda: [os.close(each) for each in pipe])
        is_directory, is_pipe = "it is a directory, and no regular file", "it is a pipe, and no regular file"
        for path, why in ((place, is_directory), (fifo, is_pipe), (f"/proc/{os.getpid()}/fd/{pipe[0]}", is_pipe),
                          ("/dev/null", "it is no regular file")):
            for flags in ([f"--tls-cert={path}", f"--tls-key={certs}/server.key"],
                          [f"--tls-cert={certs}/server.pem", f"--tls-key={path}"],
                          [*self.tls_server(certs), "--tls-verify-client", f"--tls-ca={path}"],
                          [f"--token-file={path}"]):
                with self.subTest(flags=flags):
                    daemon = self.start("--listen=127.0.0.1:0", *flags, program=harness.DDPRUND)
                    self.check_one_line(self.finish(daemon, timeout=20), f"{path}: {why}")
        with open(f"{certs}/server.pem", "rb") as file:  # a descriptor of a regular file counts as one
            self.ddprund(f"--tls-cert=/proc/{os.getpid()}/fd/{file.fileno()}", f"--tls-key={certs}/server.key")

    def test_make_certs_overwrites_nothing_and_hides_keys(self):
        certs = self.certs()
        for name in ("ca", "server", "client"):
            self.assertEqual(stat.S_IMODE(os.stat(f"{certs}/{name}.key").st_mode), 0o600)
        before = open(f"{certs}/server.pem", encoding="ascii").read()
        self.check_one_line(self.ddprunctl("make-certs", certs, "x"), "is there already, and nothing is overwritten")
        self.assertEqual(open(f"{certs}/server.pem", encoding="ascii").read(), before)
        self.check_one_line(self.ddprunctl("make-certs", f"{certs}/new", "a b"), '"a b" is no host name or address')
        self.assertFalse(os.path.exists(f"{certs}/new"))
        for hosts in ([""], ["a", ""]):
            self.check_one_line(self.ddprunctl("make-certs", f"{certs}/new", *hosts), '"" is no host name or address')
            self.assertFalse(os.path.exists(f"{certs}/new"))

    def test_make_certs_leaves_nothing_on_a_disk_that_is_full(self):
        place = self.scratch()
        script = ('mount -t tmpfs -o size=16k none "$0" && mkdir "$0/there" && "$1" make-certs "$0/there" a; echo $?; '
                  '"$1" make-certs "$0/new" a; echo $?; ls -A "$0" "$0/there"')
        done = subprocess.run(["unshare", "-m", "sh", "-c", script, place, harness.DDPRUNCTL], text=True,
                              capture_output=True, env=harness.environment())
        if "mount:" in done.stderr or "unshare:" in done.stderr:
            self.skipTest("no tmpfs of our own")
        self.assertEqual(done.stdout, f"74\n74\n{place}:\nthere\n\n{place}/there:\n", done.stderr)
        self.assertEqual([line.split(" can't write ")[0] for line in done.stderr.splitlines()], ["ddprunctl:"] * 2)
        self.assertIn("No space left on device", done.stderr)

    def test_a_host_name_may_be_longer_than_a_common_name(self):
        long = "gpu01." + "very-long-name-of-a-rack." * 5 + "example"
        self.assertGreater(len(long), 64)
        certs = self.certs(long)
        text = subprocess.run(["openssl", "x509", "-in", f"{certs}/server.pem", "-noout", "-text"], text=True,
                              check=True, capture_output=True).stdout
        self.assertIn(f"DNS:{long}", text)

    def cores_of(self, serving, calling):
        """Yields the arguments and the core file's bytes of a ddprund, of programs that call it, and of a job that
        serves its own rendezvous."""
        with open("/proc/sys/kernel/core_pattern", encoding="ascii") as pattern:
            if pattern.read().startswith(("|", "/")):
                self.skipTest("core files go elsewhere on this machine")

        def start(*args, **more):
            def with_core():
                resource.setrlimit(resource.RLIMIT_CORE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
            try:
                return self.start(*args, cwd=self.scratch(), preexec_fn=with_core, **more)
            except subprocess.SubprocessError:
                self.skipTest("the limit of core files is 0 here")
        daemon = start("--listen=127.0.0.1:0", *serving, "--tls-verify-client", program=harness.DDPRUND)
        endpoint = next(line for line in daemon.stderr if "listening on" in line).split()[-1]
        self.ddprunctl("jobs", f"--rdzv-endpoint={endpoint}", *calling, code=0)
        agent = start(f"--rdzv-endpoint={endpoint}", *calling, f"--log-dir={self.scratch()}", "--slots=1",
                      program=os.path.join(harness.BIN, "ddprun-agent"))
        self.assertTrue(any("connected to" in line for line in agent.stderr))
        work = ["sh", "-c", "echo ready; exec sleep 600"]
        jobs = [start(f"--rdzv-endpoint={endpoint}", *calling, *work),
                start(f"--rdzv-endpoint=127.0.0.1:{harness.free_port()}", *serving, *work)]
        for job in jobs:
            self.assertEqual(job.stdout.readline(), "ready\n")
        for process in (agent, *jobs, daemon):
            place = os.readlink(f"/proc/{process.pid}/cwd")
            process.send_signal(signal.SIGABRT)
            process.wait(20)
            cores = glob.glob(f"{place}/core*")
            if not cores:
                self.skipTest("the system writes no core file here")
            with open(cores[0], "rb") as file:
                core = file.read()
            self.assertIn(b"--tls-key=", core)  # the core file has the stack
            yield process.args, core

    def test_the_key_is_in_no_core_file(self):
        """Neither the server's key nor its clients' keys are in a core file."""
        certs = self.certs()
        ca = f"--tls-ca={certs}/ca.pem"
        for args, core in self.cores_of([*self.tls_server(certs), ca], [*self.tls_client(certs), ca]):
            for side in ("server", "client"):
                key = f"{certs}/{side}.key"
                with open(key, encoding="ascii") as file:
                    lines = file.read().splitlines()
                number = subprocess.run(["openssl", "ec", "-in", key, "-outform", "DER"], check=True,
                                        capture_output=True).stdout[7:39]  # SEC 1: SEQUENCE, version, OCTET STRING
                self.assertEqual(len(number), 32)
                for what, secret in (("PEM", lines[2].encode()), ("DER", number), ("OpenSSL", number[::-1])):
                    self.assertNotIn(secret, core, (args, what))

    def test_nothing_of_an_rsa_key_s_file_is_left_behind(self):
        """OpenSSL reads an RSA key into so much memory that it isn't overwritten by chance."""
        place = self.scratch()
        key, cert = f"{place}/rsa.key", f"{place}/rsa.pem"
        subprocess.run(["openssl", "req", "-x509", "-newkey", "rsa:3072", "-nodes", "-days", "2", "-subj", "/CN=x",
                        "-addext", "subjectAltName=IP:127.0.0.1", "-keyout", key, "-out", cert], check=True,
                       capture_output=True)
        os.chmod(key, 0o600)
        text = subprocess.run(["openssl", "rsa", "-in", key, "-noout", "-text"], check=True, text=True,
                              capture_output=True).stdout
        numbers = {name: bytes.fromhex(re.sub(r"[\s:]", "", digits)) for name, digits in
                   re.findall(r"^(private\w+|prime\d|exponent\d|coefficient):\n((?: +[0-9a-f:]+\n)+)", text, re.M)}
        self.assertEqual(len(numbers), 6)
        both = [f"--tls-cert={cert}", f"--tls-key={key}", f"--tls-ca={cert}"]
        for args, core in self.cores_of(both, both):
            left = {name: sum(number[at:at + 16] in core for at in range(1, len(number) - 16, 16))
                    for name, number in numbers.items()}
            self.assertEqual(set(left.values()), {0}, args)

    def test_older_tls_and_plain_requests_get_nothing(self):
        certs = self.certs()
        daemon, endpoint = self.ddprund(*self.tls_server(certs))
        address = ("127.0.0.1", int(endpoint.rsplit(":", 1)[1]))
        old = ssl.create_default_context(cafile=f"{certs}/ca.pem")
        old.minimum_version = old.maximum_version = ssl.TLSVersion.TLSv1_2
        with socket.create_connection(address, 10) as plain, self.assertRaises(OSError):
            old.wrap_socket(plain, server_hostname="localhost")
        for path, expected in ((b"/healthz", b"200 OK"), (b"/v1/jobs", b"426 Upgrade Required")):
            with socket.create_connection(address, 10) as plain:
                plain.sendall(b"GET " + path + b" HTTP/1.1\r\nHost: localhost\r\n\r\n")
                self.assertIn(expected, plain.recv(1000))
        with socket.create_connection(address, 10) as store:
            store.sendall(b"\0" + (0x3C85F7CE).to_bytes(4, "little") + b"\x0d1234")
            try:
                self.assertEqual(store.recv(4), b"")
            except ConnectionResetError:
                pass
        self.assertIsNone(daemon.poll())

    def test_a_hello_that_never_ends_is_closed(self):
        certs = self.certs()
        daemon, endpoint = self.ddprund(*self.tls_server(certs))
        with socket.create_connection(("127.0.0.1", int(endpoint.rsplit(":", 1)[1])), 10) as slow:
            slow.sendall(b"\x16\x03\x01\x02\x00")
            slow.settimeout(20)
            try:
                self.assertEqual(slow.recv(1), b"")
            except ConnectionResetError:
                pass
        self.assertIn("waited 10000 ms for the TLS handshake", daemon.stderr.readline())

    def test_one_who_has_a_certificate_and_sits_between_can_not_pass_the_proof_on(self):
        certs, token = self.certs(), self.token()
        daemon, endpoint = self.ddprund(*self.tls_server(certs), f"--token-file={token}")
        inside = ssl.create_default_context(cafile=f"{certs}/ca.pem")
        outside = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        outside.load_cert_chain(f"{certs}/server.pem", f"{certs}/server.key")
        listener = socket.create_server(("127.0.0.1", 0))
        self.addCleanup(listener.close)

        def pump(source, sink):
            try:
                while data := source.recv(65536):
                    sink.sendall(data)
            except OSError:
                pass
            finally:
                for end in (source, sink):
                    try:
                        end.shutdown(socket.SHUT_RDWR)
                    except OSError:
                        pass

        def sit_between():
            try:
                victim = outside.wrap_socket(listener.accept()[0], server_side=True)
                real = inside.wrap_socket(
                    socket.create_connection(("127.0.0.1", int(endpoint.rsplit(":", 1)[1])), 10),
                    server_hostname="localhost")
            except OSError:
                return
            back = threading.Thread(target=pump, args=(real, victim), daemon=True)
            back.start()
            pump(victim, real)
            back.join(10)
        between = threading.Thread(target=sit_between, daemon=True)
        between.start()
        done = self.ddprun(f"--rdzv-endpoint=127.0.0.1:{listener.getsockname()[1]}", "--rdzv-conf=is_host=0",
                           f"--tls-ca={certs}/ca.pem", f"--token-file={token}", *SH)
        self.check_one_line(done, "its token is another one")
        daemon.terminate()
        said = self.finish(daemon).stderr
        self.assertNotIn("joined", said)
        self.assertIn("its token is another one", said)


class TwoHosts(harness.HostsCase):
    def setUp(self):
        try:
            super().setUp()
        except harness.netns.Unavailable as why:
            self.skipTest(str(why))

    def test_embedded_with_a_token(self):
        certs, token = self.certs(*(host.address for host in self.hosts)), self.token()
        self.check_whole(self.on_hosts(self.hosts, lambda h: [
            "--nnodes=2", "--nproc_per_node=2", f"--rdzv-endpoint={self.hosts[0].address}:29400",
            "--rdzv-id=job", f"--token-file={token}", f"--tls-ca={certs}/ca.pem", *self.tls_server(certs), *SH]),
            proxied=True)

    def test_embedded_by_the_name_of_its_host(self):
        certs = self.certs(self.hosts[0].name)
        at = ["--nnodes=2", "--rdzv-id=job", f"--tls-ca={certs}/ca.pem", *self.tls_server(certs)]
        self.check_whole(self.on_hosts(self.hosts, lambda h: [
            *at, "--nproc_per_node=2", f"--rdzv-endpoint={self.hosts[0].name}:29400", *SH]), proxied=True)
        by_address = [*at, f"--rdzv-endpoint={self.hosts[0].address}:29401", *SH]
        why = f"its certificate is not for {self.hosts[0].address}"
        served = self.start(*at, f"--rdzv-endpoint={self.hosts[0].name}:29401", *SH, host=self.hosts[0])
        self.assertIn("waiting for nodes", served.stderr.readline())
        self.check_one_line(self.finish(self.start(*by_address, host=self.hosts[1])), why)
        served.terminate()
        self.finish(served)
        done = self.finish(self.start(*by_address, host=self.hosts[0]))  # even its connection to itself is refused
        self.assertEqual(done.returncode, 2, done.text)
        self.assertIn(f"ddprun: the rendezvous at {self.hosts[0].address}:29401 can't be trusted: {why}", done.stderr)

    def test_embedded_at_an_address_of_one_link(self):
        shown = self.hosts[0].run(["ip", "-6", "-o", "address", "show", "dev", self.hosts[0].interface, "scope", "link"],
                                  capture_output=True, text=True, timeout=10).stdout
        if "inet6" not in shown:
            self.skipTest("no IPv6 here")
        address = shown.split("inet6")[1].split()[0].split("/")[0]
        harness.wait_until(lambda: "tentative" not in self.hosts[0].run(
            ["ip", "-6", "address", "show", "dev", self.hosts[0].interface], capture_output=True, text=True,
            timeout=10).stdout, "the address is nobody else's")
        certs = self.certs(address)
        done = self.on_hosts(self.hosts, lambda h: [
            "--nnodes=2", f"--rdzv-endpoint=[{address}%{h.interface}]:29400", "--rdzv-id=job",
            f"--tls-ca={certs}/ca.pem", *self.tls_server(certs), *SH])
        self.assertEqual([each.returncode for each in done], [0, 0], self.transcript)
        shown = harness.parse_shown("".join(each.stdout for each in done))
        self.assertEqual([w["rank"] for w in shown], ["0", "1"], self.transcript)

    def test_a_failure_and_a_restart(self):
        certs = self.certs(*(host.address for host in self.hosts))
        done = self.on_hosts(self.hosts, lambda h: [
            "--nnodes=2", f"--rdzv-endpoint={self.hosts[0].address}:29400", "--rdzv-id=job",
            "--max-restarts=1", f"--tls-ca={certs}/ca.pem", *self.tls_server(certs), "sh", "-c",
            f'[ $DDPRUN_ROUND = 2 ] || [ $RANK = 0 ] || exit 9; [ $DDPRUN_ROUND = 2 ] || exec sleep 600; {harness.SHOW}'])
        self.assertEqual([each.returncode for each in done], [0, 0], self.transcript)
        self.assertEqual({w["round"] for w in harness.parse_shown("".join(d.stdout for d in done))}, {"2"})


if __name__ == "__main__":
    harness.main()
