#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tests jobs with a token. A node with it joins, a node without it is told so, and the token's bytes appear nowhere."""
import base64
import glob
import os
import resource
import signal
import subprocess

import harness
import relay

TOKEN = "a-token-that-is-to-be-found-nowhere-0123456789"
SH = ["sh", "-c", harness.SHOW]
AGENT = os.path.join(harness.BIN, "ddprun-agent")


def forms(secret):
    """Returns the secret, its hexadecimal digits, and its base64 at any place of a longer text."""
    found = {secret, secret.hex().encode(), secret.hex().upper().encode()}
    for skipped in range(3):
        whole = secret[skipped:len(secret) - (len(secret) - skipped) % 3]
        found |= {base64.b64encode(whole), base64.urlsafe_b64encode(whole)}
    return found


class TokenCase(harness.Case):
    def token(self, text=TOKEN, mode=0o600):
        return super().token(text, mode)

    def refused(self, done, *parts):
        self.check_one_line(done, *parts)
        self.assertNotIn(TOKEN, done.text)

    def check_free_of_it(self, content, where):
        for form in forms(TOKEN.encode()):
            self.assertFalse(form in content, f"{form} is in {where}")  # assertNotIn would print the whole content


class OneHost(TokenCase):
    def test_a_variable_that_is_set_but_empty_is_refused_by_each_program(self):
        for program, words in ((harness.DDPRUND, ["--listen=127.0.0.1:0"]),
                               (harness.DDPRUNCTL, ["jobs", "--rdzv-endpoint=127.0.0.1:1"]),
                               (AGENT, ["--rdzv-endpoint=127.0.0.1:1"])):
            with self.subTest(program):
                done = self.finish(self.start(*words, program=program, DDPRUN_TOKEN_FILE=""))
                self.check_one_line(done, "DDPRUN_TOKEN_FILE is set, but empty: name the token's file there, or unset it")
        for variable in ("DDPRUN_TOKEN_FILE", "PET_TOKEN_FILE", "DDPRUN_TLS_CA", "DDPRUN_TLS_CERT", "DDPRUN_TLS_KEY"):
            with self.subTest(variable):
                done = self.ddprun("--standalone", *SH, **{variable: ""})
                self.check_one_line(done, f"{variable}=: wants a value, got nothing")
        self.ddprun("--standalone", f"--token-file={self.token()}", "true", code=0, DDPRUN_TOKEN_FILE="")

    def test_an_empty_flag_of_a_proof_is_refused_by_each_program(self):
        tls = ["--tls-ca", "--tls-cert", "--tls-key"]
        for program, words, flags in (
                (harness.DDPRUND, [], ["--token-file", "--scrape-token-file", *tls]),
                (harness.DDPRUND, ["--ha=etcd://127.0.0.1:1"], ["--ha-ca", "--ha-cert", "--ha-key"]),
                (harness.DDPRUNCTL, ["jobs", "--rdzv-endpoint=127.0.0.1:1"], ["--token-file", *tls]),
                (AGENT, ["--rdzv-endpoint=127.0.0.1:1"], ["--token-file", *tls])):
            for flag in flags:
                with self.subTest(program=program, flag=flag):
                    done = self.finish(self.start(*words, flag, "", program=program))
                    self.check_one_line(done, f"{flag}: no file given")

    def test_an_empty_name_in_the_configuration_is_refused_by_each_program(self):
        for key in ("token_file", "tls_ca"):
            path = self.write(self.scratch(), "ddprun/ddprun.toml", f'rdzv_endpoint = "127.0.0.1:1"\n{key} = ""\n')
            for program, words in ((harness.DDPRUN, SH), (harness.DDPRUNCTL, ["jobs"]), (AGENT, [])):
                with self.subTest(program=program, key=key):
                    done = self.finish(self.start(*words, program=program, XDG_CONFIG_HOME=os.path.dirname(os.path.dirname(path))))
                    self.check_one_line(done, f"{path}:2: {key}", "wants a value, got nothing")

    def test_the_right_token_by_flag_variable_and_file(self):
        path = self.token()
        _, endpoint = self.ddprund(f"--token-file={path}")
        config = self.write(self.scratch(), "ddprun.toml", f'token_file = "{path}"\n')
        for how, more in (([f"--token-file={path}"], {}), ([], {"DDPRUN_TOKEN_FILE": path}),
                          ([f"--config={config}"], {})):
            with self.subTest(how):
                done = self.ddprun(f"--rdzv-endpoint={endpoint}", *how, *SH, code=0, **more)
                self.assertIn("rank=0", done.stdout)

    def test_the_daemon_takes_the_variable(self):
        path = self.token()
        _, endpoint = self.ddprund(DDPRUN_TOKEN_FILE=path)
        self.refused(self.ddprun(f"--rdzv-endpoint={endpoint}", *SH), "wants a token")

    def test_a_wrong_or_missing_token_is_one_line_on_both_sides(self):
        daemon, endpoint = self.ddprund(f"--token-file={self.token()}")
        other = self.token("another token, as long as that")
        self.refused(self.ddprun(f"--rdzv-endpoint={endpoint}", f"--token-file={other}", *SH),
                     f"ddprun: the rendezvous at {endpoint} refused this node: its token is another one")
        self.assertIn("its token is another one", daemon.stderr.readline())
        self.refused(self.ddprun(f"--rdzv-endpoint={endpoint}", *SH),
                     f"ddprun: the rendezvous at {endpoint} wants a token: give this ddprun its --token-file")
        self.assertIn("it gave no proof of the token", daemon.stderr.readline())
        _, open_one = self.ddprund()
        self.refused(self.ddprun(f"--rdzv-endpoint={open_one}", f"--token-file={other}", *SH),
                     "has no token, but this side has one")

    def test_a_bad_file_is_one_line(self):
        short, shown = self.token("short"), self.token(mode=0o644)
        for path, why in ((short, "needs at least 16"), (shown, f"chmod 600 {shown}"),
                          ("/nonexistent", "No such file"), ("/dev/zero", "no regular file")):
            with self.subTest(path):
                self.refused(self.ddprun(f"--token-file={path}", *SH), "--token-file", why)
                daemon = self.start(f"--token-file={path}", program=harness.DDPRUND)
                self.refused(self.finish(daemon, timeout=20), why)

    def test_ddprunctl_needs_it_too(self):
        path, other = self.token(), self.token("another token, as long as that")
        daemon, endpoint = self.ddprund(f"--token-file={path}")
        job = self.start(f"--rdzv-endpoint={endpoint}", "--rdzv-id=mine", f"--token-file={path}",
                         "--shutdown-timeout=1", "sh", "-c", "echo ready; exec sleep 600")
        self.assertEqual(job.stdout.readline(), "ready\n")
        ask = ["jobs", f"--rdzv-endpoint={endpoint}"]
        done = self.ddprunctl(*ask, f"--token-file={path}", code=0)
        self.assertRegex(done.stdout, r"(?m)^mine +running +1 +1 of 1$")
        done = self.ddprunctl(*ask, "--json", DDPRUN_TOKEN_FILE=path)
        self.assertIn('"run_id":"mine"', done.stdout)
        self.refused(self.ddprunctl(*ask), f"the rendezvous at {endpoint} wants a token: give --token-file")
        self.refused(self.ddprunctl(*ask, f"--token-file={other}"), "its token is another one")
        _, open_one = self.ddprund()
        self.refused(self.ddprunctl("jobs", f"--rdzv-endpoint={open_one}", f"--token-file={path}"),
                     "has no token, but this side has one")
        done = self.ddprunctl("jobs", f"--rdzv-endpoint={open_one}")
        self.assertEqual((done.returncode, done.stdout), (0, "no jobs\n"), done.text)
        job.send_signal(signal.SIGTERM)
        self.finish(job)
        daemon.terminate()
        said = self.finish(daemon).stderr
        self.assertRegex(said, r"refused a request of 127.0.0.1:\d+: its token is another one")

    def test_its_bytes_are_not_on_the_wire(self):
        path, place = self.token(), self.scratch()
        _, endpoint = self.ddprund(f"--token-file={path}")
        between = relay.Relay(int(endpoint.rsplit(":", 1)[1]), records=True)
        self.addCleanup(between.close)
        there = [f"--rdzv-endpoint=127.0.0.1:{between.port}", f"--token-file={path}"]
        jobs = [self.start(*there, "--nnodes=2", "--rdzv-id=a-job-to-be-found", "--rdzv-conf=is_host=0", "sh", "-c",
                           f"echo ready; until [ -e {place}/go ]; do sleep 0.02; done; exit 3") for _ in range(2)]
        for job in jobs:
            self.assertEqual(job.stdout.readline(), "ready\n")
        for page in ("jobs", "status"):
            self.ddprunctl(page, *there, code=0)
        self.write(place, "go", "")
        for job in jobs:  # a failed check is printed there, too
            done = self.finish(job)
            self.assertNotEqual(done.returncode, 0, done.text)
        between.close()
        carried = [bytes(each) for each in between.carried]
        plain = [relay.unmasked(each) for each in carried]
        everything = b"".join(plain)
        for known in (b'"run_id":"a-job-to-be-found"', b"proof 1 ", b"GET /v1/jobs ", b"GET /v1/status ",
                      b"Authorization: DDPRUN-HMAC 1 ", b'"type":"join"'):
            self.assertTrue(known in everything, f"no {known} in {everything[:20_000]}")
        for each in (*carried, *plain):
            self.check_free_of_it(each, "what was said")

    def test_its_bytes_are_in_no_argument_environment_report_plan_or_journal(self):
        path, place = self.token(), self.scratch()
        daemon, endpoint = self.ddprund(f"--token-file={path}", "--verbose", f"--state-dir={place}/state")
        flags = [f"--rdzv-endpoint={endpoint}", f"--token-file={path}", f"--report={place}/report.json",
                 "--rdzv-id=a-job-to-be-found",
                 f"--event-log=file={place}/events", f"--log-dir={place}/logs", "--redirects=3",
                 "--shutdown-timeout=1"]
        plan = self.ddprun("--dry-run", "--json", *flags, *SH, code=0)
        self.assertIn("127.0.0.1", plan.stdout)
        self.assertNotIn(TOKEN, plan.text)

        job = self.start(*flags, "sh", "-c", f"env > {place}/worker; : > {place}/ready; exec sleep 600",
                         DDPRUN_TOKEN_FILE=path, LOGLEVEL="DEBUG")
        harness.wait_until(lambda: os.path.exists(f"{place}/ready"), "the worker runs")
        seen = 0
        for name in glob.glob("/proc/[0-9]*/cmdline") + glob.glob("/proc/[0-9]*/environ"):
            try:
                with open(name, "rb") as file:
                    text = file.read()
            except OSError:
                continue  # the process has ended, or is another user's
            seen += path.encode() in text
            self.check_free_of_it(text, name)
        self.assertGreaterEqual(seen, 3)  # the test's own processes are among them
        self.check_files(f"{place}/state")
        job.send_signal(signal.SIGTERM)
        done = self.finish(job)
        daemon.terminate()
        said = self.finish(daemon)
        self.assertIn("joined", said.stderr)
        self.check_free_of_it((done.text + said.text).encode(), "what was said")
        found = self.check_files(place)
        self.assertTrue({"report.json", "events", "worker"} <= {os.path.basename(name) for name in found}, found)
        self.check_files(f"{place}/state")

    def check_files(self, place):
        """Checks that no file in `place` has the token, and that one has the job's name. Returns the files' paths."""
        found = [os.path.join(at, name) for at, _, names in os.walk(place) for name in names]
        everything = b""
        for name in found:
            with open(name, "rb") as file:
                content = file.read()
            everything += content
            self.check_free_of_it(content, name)
        self.assertIn(b"a-job-to-be-found", everything)
        return found

    def test_its_bytes_are_in_no_core_file(self):
        with open("/proc/sys/kernel/core_pattern") as pattern:
            if pattern.read().startswith(("|", "/")):
                self.skipTest("core files go elsewhere on this machine")
        path, place = self.token(), self.scratch()

        def with_core():
            resource.setrlimit(resource.RLIMIT_CORE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        try:
            daemon, endpoint = self.ddprund(f"--token-file={path}", cwd=place, preexec_fn=with_core)
        except subprocess.SubprocessError:
            self.skipTest("the limit of core files is 0 here")
        # Tests the daemon, a node's agent, and an agent that serves its job's rendezvous.
        for which in (None, "ddprund", "itself"):
            with self.subTest(which):
                where, process = place, daemon
                if which:
                    where = self.scratch()
                    at = "--standalone" if which == "itself" else f"--rdzv-endpoint={endpoint}"
                    process = self.start(at, f"--token-file={path}", "sh", "-c", "echo ready; exec sleep 600",
                                         cwd=where, preexec_fn=with_core)
                    self.assertEqual(process.stdout.readline(), "ready\n")
                else:
                    self.ddprun(f"--rdzv-endpoint={endpoint}", f"--token-file={path}", *SH, code=0)
                    daemon, endpoint = self.ddprund(f"--token-file={path}")  # the agent's daemon
                process.send_signal(signal.SIGABRT)
                process.wait(20)
                cores = glob.glob(f"{where}/core*")
                if not cores:
                    self.skipTest("the system writes no core file here")
                with open(cores[0], "rb") as file:
                    core = file.read()
                self.assertIn(path.encode(), core)  # the core file has the heap
                self.check_free_of_it(core, f"the core of {process.args}")


class TwoHosts(TokenCase, harness.HostsCase):
    def setUp(self):
        try:
            super().setUp()
        except harness.netns.Unavailable as why:
            self.skipTest(str(why))

    def flags(self, path):
        return ["--nnodes=2", "--nproc_per_node=2", f"--rdzv-endpoint={self.hosts[0].address}:29400",
                "--rdzv-id=job", f"--token-file={path}"]

    def test_embedded(self):
        path = self.token()
        self.check_whole(self.on_hosts(self.hosts, lambda h: [*self.flags(path), *SH]), proxied=True)

    def test_a_node_with_another_token_is_refused_and_the_job_goes_on(self):
        path, other = self.token(), self.token("another token, as long as that")
        first = self.start(*self.flags(path), *SH, host=self.hosts[0])
        refused = self.finish(self.start(*self.flags(other), *SH, host=self.hosts[1], OMP_NUM_THREADS="1"))
        self.refused(refused, "its token is another one")
        second = self.finish(self.start(*self.flags(path), *SH, host=self.hosts[1], OMP_NUM_THREADS="1"))
        done = self.finish(first)
        self.assertEqual((done.returncode, second.returncode), (0, 0), done.text + second.text)
        self.assertIn("its token is another one (compare the --token-file of both)", done.stderr)


if __name__ == "__main__":
    harness.main()
