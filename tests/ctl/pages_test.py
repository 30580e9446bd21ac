#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tests `ddprunctl jobs` and `ddprunctl status` with a daemon, a job's own rendezvous, and none."""
import datetime
import http.server
import json
import os
import re
import resource
import signal
import socket
import subprocess
import sys
import threading
import time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "..", "launcher"))
import harness  # noqa: E402
import files  # noqa: E402  (harness says where it lies)
from harness import wait_until  # noqa: E402

WAITS = ["sh", "-c", "echo ready; exec sleep 600"]


class Pages(harness.Case):
    def shown(self, command, endpoint, *flags):
        done = self.ddprunctl(command, f"--rdzv-endpoint={endpoint}", *flags)
        self.assertEqual((done.returncode, done.stderr), (0, ""), done.text)
        return json.loads(done.stdout) if "--json" in flags else done.stdout

    def runs(self, endpoint, run_id, *flags, script="exit 0", code=0):
        self.ddprun(f"--rdzv-endpoint={endpoint}", f"--rdzv-id={run_id}", *flags, "sh", "-c", script, code=code)

    def finished(self, endpoint, count):
        """Waits until `count` jobs are over. Returns them."""
        wait_until(lambda: len(self.shown("jobs", endpoint, "--json")["finished"]) == count, f"{count} are over")
        return self.shown("jobs", endpoint, "--json")["finished"]

    def test_a_job_that_is_over_is_shown_behind_those_that_live(self):
        _, endpoint = self.ddprund()
        self.assertEqual(self.shown("jobs", endpoint), "no jobs\n")
        before = datetime.datetime.now(datetime.timezone.utc)
        self.runs(endpoint, "first")
        self.runs(endpoint, "second", "--max-restarts=1", script="exit 9", code=9)
        first, second = self.finished(endpoint, 2)
        after = datetime.datetime.now(datetime.timezone.utc)
        self.assertEqual((first["run_id"], first["exit_code"], first["reason"], first["restarts"]), ("first", 0, "", 0))
        self.assertEqual((second["exit_code"], second["rounds"], second["restarts"], second["failures"]), (9, 2, 1, 2))
        self.assertIn("failed with exit code 9", second["first_failure"])
        self.assertIn("exit code 9", second["reason"])
        self.assertEqual((second["num_nodes"], len(second["nodes"]), second["node_losses"]), (1, 1, 0))
        for job in (first, second):
            began, ended = (datetime.datetime.fromisoformat(job[key].replace("Z", "+00:00"))
                            for key in ("began", "ended"))
            self.assertLessEqual(before - datetime.timedelta(seconds=2), began)
            self.assertLessEqual(began, ended)
            self.assertLessEqual(ended, after)
        job = self.start(f"--rdzv-endpoint={endpoint}", "--rdzv-id=mine", "--shutdown-timeout=1", *WAITS)
        self.assertEqual(job.stdout.readline(), "ready\n")
        lines = self.shown("jobs", endpoint).splitlines()
        self.assertRegex(lines[0], "^JOB +PHASE +ROUND +NODES +EXIT +ENDED +WHY$")
        self.assertRegex(lines[1], "^mine +running +1 +1 of 1$")
        self.assertRegex(lines[2], r"^first +ended +1 +1 +0 +\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ$")
        self.assertRegex(lines[3], r"^second +ended +2 +1 +9 +\S+Z +.*exit code 9")
        job.send_signal(signal.SIGTERM)
        self.finish(job)
        # A job with the id of a finished job is a new job.
        self.runs(endpoint, "first")
        self.assertEqual([job["run_id"] for job in self.finished(endpoint, 4)], ["first", "second", "mine", "first"])

    def test_the_endpoint_without_a_flag_is_that_of_the_configuration(self):
        token = self.token()
        _, endpoint = self.ddprund(f"--token-file={token}")
        home = self.scratch()
        files.write(home, "ddprun/ddprun.toml",
                    f'rdzv_endpoint = "{endpoint}"\ntoken_file = "{token}"\nmax_restarts = 3\n')
        here = {"XDG_CONFIG_HOME": home}
        done = self.ddprunctl("jobs", **here)
        self.assertEqual((done.returncode, done.stdout), (0, "no jobs\n"), done.text)
        # A flag wins over the file.
        done = self.ddprunctl("jobs", f"--token-file={home}/none", **here)
        self.check_one_line(done, f"{home}/none")
        files.write(home, "ddprun/ddprun.toml", 'rdzv_endpoint = "a b"\n')
        self.check_one_line(self.ddprunctl("jobs", **here), "rdzv_endpoint of ddprun.toml, a b: ")
        files.write(home, "ddprun/ddprun.toml", "rdzv_endpoint = 1\n")
        self.check_one_line(self.ddprunctl("jobs", **here), "ddprun.toml:1: rdzv_endpoint wants a text")

    def test_none_is_kept_with_0(self):
        _, endpoint = self.ddprund("--keep-finished=0")
        self.runs(endpoint, "first")
        wait_until(lambda: self.shown("jobs", endpoint) == "no jobs\n", "it is gone")
        self.assertEqual(self.shown("jobs", endpoint, "--json")["finished"], [])
        self.assertIn("none kept once it is over", self.shown("status", endpoint))

    def test_a_bad_time_is_named(self):
        for bad in ("", "soon", "-1", "1001d"):
            daemon = self.start("--listen=127.0.0.1:0", "--keep-finished", bad, program=harness.DDPRUND)
            self.check_one_line(self.finish(daemon, timeout=20), f'--keep-finished: "{bad}" is no duration')

    def test_a_node_has_the_grace_to_come_back(self):
        _, endpoint = self.ddprund("--reconnect-grace=0.3s")
        job = self.start(f"--rdzv-endpoint={endpoint}", *WAITS)
        self.assertEqual(job.stdout.readline(), "ready\n")
        job.kill()
        self.assertIn("its connection ended and it did not come back within 300 ms",
                      self.finished(endpoint, 1)[0]["reason"])

    def test_a_bad_grace_is_named(self):
        for bad in ("", "soon", "0", "61s"):
            daemon = self.start("--listen=127.0.0.1:0", "--reconnect-grace", bad, program=harness.DDPRUND)
            self.check_one_line(self.finish(daemon, timeout=20), f'--reconnect-grace: "{bad}" is not 0.01s to 60s')

    def test_the_daemon_as_a_whole(self):
        state = self.scratch()
        daemon, endpoint = self.ddprund(f"--state-dir={state}", "--keep-finished=90m")
        self.runs(endpoint, "first")
        self.finished(endpoint, 1)
        job = self.start(f"--rdzv-endpoint={endpoint}", "--rdzv-id=mine", "--shutdown-timeout=1", "--store=proxy",
                         *WAITS)
        self.assertEqual(job.stdout.readline(), "ready\n")
        text = self.shown("status", endpoint)
        facts = dict(re.split("  +", line, maxsplit=1) for line in text.splitlines())
        self.assertRegex(facts["version"], r"^\d+\.\d+\.\d+")
        self.assertRegex(facts["process"], rf"^{daemon.pid}, ddprund, up \d+ ")
        self.assertEqual(facts["listens on"], endpoint)
        self.assertEqual((facts["token"], facts["TLS"]), ("off", "off"))
        self.assertEqual(facts["jobs"], "1 live, 1 of 1000 that are over, kept for 1 h 30 min")
        self.assertRegex(facts["agents"], r"^1( of \d+)?$")
        self.assertEqual(facts["handshakes"],
                         "0 of 4096: 0 silent, 0 in their request, 0 before their proof, 0 before their join")
        self.assertEqual(facts["journal"], f"kept in {state}/journal.db")
        page = self.shown("status", endpoint, "--json")
        self.assertEqual((page["pid"], page["addresses"], page["embedded"]), (daemon.pid, [endpoint], False))
        self.assertEqual((page["jobs"]["live"], page["jobs"]["finished"]), (1, 1))
        self.assertEqual(page["jobs"]["keep_finished_seconds"], 5400)
        self.assertEqual(page["stores"]["plain"]["connections"], 0)
        self.assertEqual(page["journal"], {"kept": True, "path": f"{state}/journal.db"})
        job.send_signal(signal.SIGTERM)
        self.finish(job)

    def test_a_jobs_own_rendezvous_has_a_status(self):
        endpoint = f"127.0.0.1:{harness.free_port()}"
        job = self.start(f"--rdzv-endpoint={endpoint}", "--shutdown-timeout=1", *WAITS)
        self.assertEqual(job.stdout.readline(), "ready\n")
        text = self.shown("status", endpoint)
        self.assertIn(f"{job.pid}, a ddprun, up ", text)
        self.assertIn("1 live, none kept once it is over", text)
        self.assertIn("none (--state-dir)", text)
        job.send_signal(signal.SIGTERM)
        self.finish(job)

    def refused(self, done, code, what):
        self.check_one_line(done, what, code=code)
        self.assertEqual(done.stdout, "", done.text)
        self.assertTrue(done.stderr.startswith("ddprunctl: "), done.stderr)

    def test_a_client_that_is_not_answered_is_told_why(self):
        token, other = self.token(), self.token("another token, as long as it")
        _, closed = self.ddprund(f"--token-file={token}")
        nobody = f"127.0.0.1:{harness.free_port()}"
        unanswered = [self.start(command, f"--rdzv-endpoint={nobody}", program=harness.DDPRUNCTL)
                      for command in ("jobs", "status")]
        for command in ("jobs", "status"):
            for flags, code, what in (
                    (["--rdzv-endpoint=:x"], 2, "--rdzv-endpoint=:x: wants HOST or HOST:PORT"),
                    ([f"--rdzv-endpoint={closed}"], 2, "wants a token: give --token-file"),
                    ([f"--rdzv-endpoint={closed}", f"--token-file={other}"], 2, "its token is another one"),
                    ([f"--rdzv-endpoint={closed}", "--token-file=/nonexistent"], 2, "/nonexistent")):
                with self.subTest(command=command, flags=flags):
                    self.refused(self.ddprunctl(command, *flags), code, what)
            self.shown(command, closed, f"--token-file={token}", "--json")
        for process in unanswered:  # each of these gives up after 10 s
            self.refused(self.finish(process), 2, f"can't connect to {nobody}")
        self.assertIn("token           on", self.shown("status", closed, f"--token-file={token}"))

    def serving(self, answer):
        """Returns the endpoint of a server that answers `answer(path)`: (code, headers, body)."""
        class Server(http.server.BaseHTTPRequestHandler):
            def do_GET(self):
                code, headers, body = answer(self.path)
                self.send_response(code)
                for name, value in {**headers, "Content-Length": str(len(body))}.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_):
                pass

        server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Server)
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        self.addCleanup(lambda: (server.shutdown(), thread.join(), server.server_close()))
        return f"127.0.0.1:{server.server_port}"

    def test_the_leader_of_several_is_asked(self):
        _, leader = self.ddprund()
        status = {**self.shown("status", leader, "--json"), "role": "standby", "leader": leader}
        standby = self.serving(lambda path: (200, {}, json.dumps(status).encode()) if path == "/v1/status"
                               else (503, {"ddprun-standby": leader}, b""))
        pid = status["pid"]
        status["pid"] = 1
        dead = f"127.0.0.1:{harness.free_port()}"
        self.runs(leader, "mine")
        self.finished(leader, 1)
        for endpoints in ([dead, standby, leader], [leader, dead], [standby, leader]):
            with self.subTest(endpoints=endpoints):
                self.assertEqual(self.shown("status", ",".join(endpoints), "--json")["pid"], pid)
                self.assertEqual(len(self.shown("jobs", ",".join(endpoints), "--json")["finished"]), 1)
        for command in ("jobs", "status"):
            self.refused(self.ddprunctl(command, f"--rdzv-endpoint={dead},{standby}"), 2,
                         f"no rendezvous leads: can't connect to {dead}: Connection refused; {standby} is a standby "
                         f"of {leader}")
        self.refused(self.ddprunctl("jobs", f"--rdzv-endpoint={standby}"), 2,
                     f"the rendezvous at {standby} is a standby of {leader}, which has no /v1/jobs: name all endpoints")
        self.assertRegex(self.shown("status", standby), f"(?m)^role +standby of {leader}$")
        self.assertNotIn("role", self.shown("status", leader))
        self.refused(self.ddprunctl("jobs", f"--rdzv-endpoint={dead},{dead}"), 2, f"has {dead} twice")

    def test_a_client_that_gets_no_answer_now_is_told_why(self):
        why = "256 requests wait already for their answers: ask again later"
        busy = self.serving(lambda path: (503, {}, f"{why}\nand a second line".encode()))
        self.refused(self.ddprunctl("jobs", f"--rdzv-endpoint={busy}"), 2, f"{busy} can't answer now: {why}\n")

    def test_characters_that_turn_text_are_written_out_whoever_sent_them(self):
        _, endpoint = self.ddprund()
        for command in ("jobs", "status"):
            page = json.dumps({**self.shown(command, endpoint, "--json"), "more": "\u202ea\u009b2J"}, ensure_ascii=False).encode()
            older = self.serving(lambda path, page=page: (200, {}, page))
            done = self.ddprunctl(command, f"--rdzv-endpoint={older}", "--json")
            self.assertIn(r'"\u202ea\u009b2J"', done.stdout, done.text)

    def test_a_foreign_page_is_never_printed(self):
        for body in (b"<html>\x1b[2Jhello</html>", b"{}", b"[]", b"", b'{"jobs":7}'):
            endpoint = self.serving(lambda path, body=body: (200, {}, body))
            for command in ("jobs", "status"):
                for flags in ([], ["--json"]):
                    with self.subTest(body=body, command=command, flags=flags):
                        self.refused(self.ddprunctl(command, f"--rdzv-endpoint={endpoint}", *flags), 70,
                                     f"{endpoint} answered with something that isn't ddprund's: ")

    def talking(self, talk):
        """Returns the endpoint of a server that passes each connection to `talk`."""
        listener = socket.create_server(("127.0.0.1", 0))

        def serve():
            while True:
                try:
                    connection, _ = listener.accept()
                except OSError:
                    return
                with connection:
                    try:
                        talk(connection)
                    except OSError:
                        pass
        thread = threading.Thread(target=serve)
        thread.start()
        self.addCleanup(lambda: (listener.shutdown(socket.SHUT_RDWR), listener.close(), thread.join()))
        return f"127.0.0.1:{listener.getsockname()[1]}"

    def test_a_header_without_end_is_cut_off(self):
        """The server sends fields of four bytes, which would take many times their size in memory, before a body and
        after it."""
        for begin in (b"HTTP/1.1 200 OK\r\n", b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n"):
            def talk(connection, begin=begin):
                connection.sendall(begin)
                for _ in range(20_000):  # 80 MB in all
                    connection.sendall(b"a:\r\n" * 1000)
            endpoint = self.talking(talk)
            before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
            self.refused(self.ddprunctl("jobs", f"--rdzv-endpoint={endpoint}"), 70,
                         f"{endpoint} answered with something that isn't ddprund's: no HTTP")
            more = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss - before
            if not os.environ.get("DDPRUN_SANITIZE"):
                self.assertLess(more, 64 << 10)  # in KiB

    def test_it_says_at_a_terminal_what_it_waits_for(self):
        listener = socket.create_server(("127.0.0.1", 0))
        self.addCleanup(listener.close)
        endpoint = f"127.0.0.1:{listener.getsockname()[1]}"
        terminal, inside = os.openpty()
        self.addCleanup(os.close, terminal)
        asks = subprocess.Popen([harness.DDPRUNCTL, "jobs", f"--rdzv-endpoint={endpoint}"], stderr=inside,
                                env=harness.environment())
        self.addCleanup(lambda: (asks.kill(), asks.wait()))
        os.close(inside)
        self.assertEqual(os.read(terminal, 1000).decode(),
                         f"ddprunctl: waiting for an answer of {endpoint}, 10 s at most\r\n")
        listener.accept()[0].close()
        self.assertIn(f"{endpoint} ended the connection", os.read(terminal, 1000).decode())
        self.assertEqual(asks.wait(20), 69)

    def test_an_older_rendezvous_is_named_and_so_is_another_server(self):
        old = self.serving(lambda path: (404, {}, b"try /, /healthz or /v1/jobs\n"))
        self.refused(self.ddprunctl("status", f"--rdzv-endpoint={old}"), 70,
                     f"the rendezvous at {old} knows no /v1/status: it is older than this program")
        for status in (404, 502):
            other = self.serving(lambda path, status=status: (status, {}, b"<html>no \x1b such"))
            self.refused(self.ddprunctl("status", f"--rdzv-endpoint={other}"), 70,
                         f'{other} answered with something that isn\'t ddprund\'s: HTTP {status}, "<html>no \\x1b such"')

    def test_it_says_at_once_how_to_give_an_endpoint_if_there_is_none(self):
        if subprocess.run(["unshare", "--net", "true"], capture_output=True).returncode != 0:
            self.skipTest("no network name spaces")  # only in a name space the default port is surely free
        for command in (["status"], ["jobs"], ["jobs", "--to=nodes"], ["cancel", "nodes:x"]):
            began = time.monotonic()
            done = self.finish(self.start("--net", "sh", "-c", 'ip link set lo up; exec "$0" "$@"', harness.DDPRUNCTL,
                                          *command, program="unshare"))
            self.assertLess(time.monotonic() - began, 5)  # an earlier version took 10 s
            self.check_one_line(done, "127.0.0.1:29400", "Connection refused", "--rdzv-endpoint", "DDPRUN_RDZV_ENDPOINT",
                                "ddprun.toml")

    def test_a_word_that_is_mistyped_gets_a_suggestion(self):
        for words, line in (("staus", "unknown command staus (did you mean status?) (see ddprunctl --help)"),
                            ("staus --json", "unknown command staus (did you mean status?) (see ddprunctl --help)"),
                            ("--json status", "--json comes after the command (see ddprunctl status --help)"),
                            ("status --jsn", "unknown flag --jsn (did you mean --json?) (see ddprunctl status --help)"),
                            ("jobs now", 'takes no argument, got "now" (see ddprunctl jobs --help)')):
            with self.subTest(words=words):
                self.refused(self.ddprunctl(*words.split()), 2, line)
        done = self.ddprunctl("status", "--jsn", "--tokenfile=x")
        self.assertEqual((done.returncode, done.stderr.count("unknown flag"), done.stderr.count("\n")), (2, 2, 2), done.text)

    def test_a_script_that_still_calls_emulate_is_told_where_it_went(self):
        for args in (("emulate",), ("emulate", "--agents=2", "--json")):
            with self.subTest(args):
                done = self.finish(self.start(*args, program=harness.DDPRUNCTL))
                self.check_one_line(done, "ddprunctl: emulate is no command any more", "fleet_load", "bench/fleet", code=2)

    def test_a_closed_stdout_is_one_that_takes_nothing(self):
        _, endpoint = self.ddprund()
        for program, *args in ((harness.DDPRUNCTL, "jobs", f"--rdzv-endpoint={endpoint}"), (harness.DDPRUNCTL, "--help"),
                               (harness.DDPRUN, "--version"), (harness.DDPRUND, "--help"),
                               (harness.DDPRUN + "-agent", "--help")):
            with self.subTest(program, args=args):
                done = self.finish(self.start("-c", 'exec "$0" "$@" >&-', program, *args, program="/bin/sh"))
                self.check_one_line(done, "can't write to st", "Bad file descriptor", code=74)


if __name__ == "__main__":
    harness.main()
