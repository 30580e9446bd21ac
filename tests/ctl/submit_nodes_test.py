#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tests `ddprunctl submit --to nodes`: a job file runs on real standing agents, from the dry run to the logs."""
import json
import os
import signal
import socket
import sys
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "launcher"))
import harness  # noqa: E402
import relay  # noqa: E402

AGENT = os.path.join(harness.BIN, "ddprun-agent")

JOB = """
name = "mnist"
command = ["sh", "-c", "{script}"]
nodes = 2
workers_per_node = 2
directory = "{place}"
[environment]
SECRET = "hidden"
[to.nodes]
endpoint = "{endpoint}"
token_file = "{token}"
"""


class Nodes(harness.Case):
    def setUp(self):
        self.place = self.scratch()
        self.token_file = self.token()
        self.serving = [f"--token-file={self.token_file}", f"--state-dir={self.place}/state"]
        self.daemon, self.endpoint = self.ddprund(*self.serving)
        self.flags = [f"--rdzv-endpoint={self.endpoint}", f"--token-file={self.token_file}"]
        for name in ("n1", "n2"):
            agent = self.start(*self.flags, f"--name={name}", "--slots=2", f"--log-dir={self.place}", program=AGENT)
            for line in agent.stderr:
                if "connected to" in line:
                    break

    def job_file(self, script):
        return self.write(self.place, "job.toml", JOB.format(
            script=script, place=self.place, endpoint=self.endpoint, token=self.token_file))

    def test_submitted_shown_and_cancelled(self):
        path = self.job_file("echo rank $RANK has $SECRET; exec sleep 600")
        dry = self.ddprunctl("submit", path, "--dry-run", code=0)
        self.assertIn("/v1/gangs", dry.stdout)
        self.assertNotIn("hidden", dry.stdout)
        done = self.ddprunctl("submit", path, code=0)
        job = done.stdout.strip()
        self.assertRegex(job, r"^nodes:mnist-\w{5}$")
        harness.wait_until(lambda: self.ddprunctl("logs", job, *self.flags).stdout.count("has hidden") == 4,
                           "all ranks have said something")
        state = json.loads(self.ddprunctl("status", job, "--json", *self.flags).stdout)
        self.assertEqual((state["phase"], sorted(state["nodes"])), ("running", ["n1", "n2"]))
        listed = json.loads(self.ddprunctl("jobs", "--to", "nodes", "--json", *self.flags).stdout)["jobs"]
        self.assertEqual([each["id"] for each in listed], [job])
        self.assertEqual(self.ddprunctl("cancel", job, *self.flags).returncode, 0)
        harness.wait_until(lambda: "cancelled" in self.ddprunctl("status", job, "--json", *self.flags).stdout,
                           "it is cancelled")

    def test_a_dry_run_is_what_is_posted_and_its_ranks_are_those_that_run(self):
        between = relay.Relay(int(self.endpoint.rsplit(":", 1)[1]), records=True)
        self.addCleanup(between.close)
        path = self.write(self.place, "job.toml", JOB.format(
            script="echo rank $RANK of node $GROUP_RANK", place=self.place, endpoint=f"127.0.0.1:{between.port}",
            token=self.token_file).replace("[environment]", """environment_without = ["KEPT"]
flags = ["--shutdown-timeout=5"]
[environment]""") + "[limits]\npids = 900\ntime = 600\n[restarts]\nmax_restarts = 2\n")
        here = {"FROM_HERE": "forwarded", "KEPT": "here", "ODD": "\udcff"}
        dry = self.ddprunctl("submit", path, "--dry-run", "--json", code=0, **here)
        self.assertIn("the variable ODD is no UTF-8 text, and stays here", json.loads(dry.stdout)["notes"])
        self.assertEqual(between.carried, [])  # nothing was sent
        plan = json.loads(dry.stdout)
        shown = json.loads(plan["text"])
        done = self.ddprunctl("submit", path, code=0, **here)
        self.assertIn("the variable ODD is no UTF-8 text", done.stderr)
        posts = [bytes(said[said.index(b"POST /v1/gangs "):]) for said in between.carried if b"POST /v1/gangs " in said]
        # This request has the proof of the token; the one before it got the challenge.
        sent = json.loads(posts[-1].partition(b"\r\n\r\n")[2])
        job = done.stdout.strip()
        self.assertEqual(f"nodes:{sent['id']}", job)
        # The plan leaves out the random part of the id, and the variables' values.
        self.assertEqual(shown["id"], sent["id"][:-5] + "xxxxx")
        names = [variable.partition("=")[0] for variable in sent["environment"]]
        self.assertEqual(shown["environment"], names)
        for variable in ("SECRET=hidden", "FROM_HERE=forwarded"):
            self.assertIn(variable, sent["environment"])
        self.assertNotIn("KEPT", names)
        self.assertEqual(sent["stop_ms"], 85_000)  # the sum of --shutdown-timeout and ddprun's own time to end
        for key in ("id", "environment"):
            del shown[key], sent[key]
        self.assertEqual(shown, sent)
        for flag in ("--worker-pids=900", "--time-limit=600", "--max-restarts=2"):
            self.assertIn(flag, sent["arguments"])
        harness.wait_until(lambda: '"succeeded"' in self.ddprunctl("status", job, "--json", *self.flags).stdout,
                           "it has ended")
        said = self.ddprunctl("logs", job, *self.flags).stdout
        for row in plan["ranks"]:
            for rank in range(row["first_global_rank"], row["first_global_rank"] + row["num_workers"]):
                self.assertIn(f"rank {rank} of node {row['node_rank']}\n", said)
        self.assertEqual(said.count("of node"), sum(row["num_workers"] for row in plan["ranks"]))

    def test_output_without_line_ends_comes_whole(self):
        """The output is a progress bar's, longer than a page. It is read while the job runs, and afterwards."""
        job = self.ddprunctl("submit", self.job_file(
            "[ $RANK != 0 ] || seq 30000 | tr '\\\\n' '\\\\r'; until [ -e go ]; do sleep 0.05; done")).stdout.strip()
        whole = "".join(f"{i}\n" for i in range(1, 30001))  # reading turns each \\r into \\n
        harness.wait_until(lambda: whole in self.ddprunctl("logs", job, *self.flags).stdout, "all is said")
        self.write(self.place, "go", "")
        for follow in (["-f"], []):
            self.assertIn(whole, self.ddprunctl("logs", *follow, job, *self.flags).stdout)

    def test_a_job_that_is_asked_to_end_is_said_to_be(self):
        path = self.job_file("trap 'until [ -e go ]; do sleep 0.05; done; exit 1' TERM; echo rank $RANK waits; sleep 600 & wait")
        job = self.ddprunctl("submit", path).stdout.strip()
        harness.wait_until(lambda: self.ddprunctl("logs", job, *self.flags).stdout.count(" waits") == 4, "all ranks wait")
        self.assertEqual(self.ddprunctl("cancel", job, *self.flags).returncode, 0)
        state = json.loads(self.ddprunctl("status", job, "--json", *self.flags).stdout)
        self.assertEqual((state["phase"], state["reason"]), ("running", "asked to end"))
        self.write(self.place, "go", "")
        harness.wait_until(lambda: '"cancelled"' in self.ddprunctl("status", job, "--json", *self.flags).stdout,
                           "it is cancelled")

    def test_waited_for_it_ends_with_the_job_s_exit_code_also_where_its_ddprund_begins_anew(self):
        alone, self.endpoint = self.endpoint, f"{self.endpoint},127.0.0.1:1"  # nothing listens at the second endpoint
        waiting = self.start("submit", self.job_file("echo rank $RANK; until [ -e go ]; do sleep 0.05; done; "
                                                     "exit $((RANK == 3 ? 5 : 0))"), "--wait", program=harness.DDPRUNCTL)
        said = ""
        while any(f"] rank {rank}\n" not in said for rank in range(4)):
            line = waiting.stdout.readline()
            self.assertTrue(line, said)
            said += line
        self.daemon.kill()
        self.daemon.wait()
        for line in waiting.stderr:
            if "; asking again" in line:
                break
        self.assertIn("no rendezvous leads", line)
        self.ddprund(*self.serving, f"--listen={alone}")
        self.write(self.place, "go", "")
        done = self.finish(waiting, code=5)
        self.assertEqual([(said + done.stdout).count(f"] rank {rank}\n") for rank in range(4)], [1] * 4, said + done.text)

    def test_a_job_whose_answer_was_lost_is_asked_for_again_and_submitted_once(self):
        with socket.create_server(("127.0.0.1", 0)) as daemon:
            daemon.settimeout(20)
            submit = self.start("submit", self.mute_job(daemon), program=harness.DDPRUNCTL)
            posts = []
            for answer in (lambda _: None, lambda body: self.news(body, "queued")):
                self.hear(daemon, b"GET", lambda _: "{}")  # the first request asks whether a token is wanted
                posts.append(self.hear(daemon, b"POST", answer))
            done = self.finish(submit)
        self.assertEqual((done.returncode, done.stdout), (0, f"nodes:{json.loads(posts[0])['id']}\n"), done.text)
        self.assertEqual(posts[0], posts[1])

    def mute_job(self, server):
        return self.write(self.place, "mute.toml", 'name = "m"\ncommand = ["true"]\n[to.nodes]\n'
                          f'endpoint = "127.0.0.1:{server.getsockname()[1]}"\n')

    def test_a_signal_ends_the_wait_for_the_logs_of_a_ddprund_that_is_silent(self):
        with socket.create_server(("127.0.0.1", 0)) as mute:
            for number in (signal.SIGINT, signal.SIGTERM):
                with self.subTest(number):
                    logs = self.start("logs", "nodes:x-12345", f"--rdzv-endpoint=127.0.0.1:{mute.getsockname()[1]}",
                                      program=harness.DDPRUNCTL)
                    mute.settimeout(20)
                    connection, _ = mute.accept()
                    with connection:
                        self.assertTrue(connection.recv(1))
                        logs.send_signal(number)
                        done = self.finish(logs, timeout=5)
                    self.assertEqual((done.returncode, done.stdout + done.stderr), (128 + number, ""))

    def test_a_signal_ends_the_wait_for_a_job_whose_ddprund_is_silent(self):
        """The rendezvous takes the job, then never answers about its state or its output."""
        for number, phases in ((signal.SIGINT, []), (signal.SIGTERM, ["running"])):
            with self.subTest(number), socket.create_server(("127.0.0.1", 0)) as mute:
                mute.settimeout(20)
                submit = self.start("submit", self.mute_job(mute), "--wait", program=harness.DDPRUNCTL)
                self.hear(mute, b"GET", lambda _: "{}")  # the first request asks whether a token is wanted
                gang = json.loads(self.hear(mute, b"POST", lambda body: self.news(body, "queued")))
                for phase in phases:
                    self.hear(mute, b"GET", lambda _, phase=phase: self.news(gang, phase))
                connection, _ = mute.accept()
                with connection:
                    self.assertTrue(connection.recv(1))  # a request has come
                    submit.send_signal(number)
                    done = self.finish(submit, timeout=5)
                self.assertEqual(done.returncode, 128 + number, done.text)
                job = rf"nodes:m-\w+ --rdzv-endpoint=127.0.0.1:{mute.getsockname()[1]}"
                self.assertRegex(done.stderr, rf"\nddprunctl: nodes:m-\w+ goes on: ddprunctl logs -f {job} shows it, "
                                              rf"ddprunctl cancel {job} ends it\n$")

    def test_strangers_in_the_middle_are_outlasted_and_a_forgotten_gang_is_said(self):
        """A proxy answers, then another server listens for a while. At last ddprund is back, without the gang."""
        for follower in ("submit", "ddprun"):
            with self.subTest(follower), socket.create_server(("127.0.0.1", 0)) as daemon:
                daemon.settimeout(20)
                who = f"127.0.0.1:{daemon.getsockname()[1]}"
                job = (self.start("submit", self.mute_job(daemon), "--wait", program=harness.DDPRUNCTL)
                       if follower == "submit" else
                       self.start("--standing-agents", f"--rdzv-endpoint={who}", "true"))
                self.hear(daemon, b"GET", lambda _: "{}")  # the first request asks whether a token is wanted
                gang = json.loads(self.hear(daemon, b"POST", lambda body: self.news(body, "running")))
                for answer in (self.answer(404, "<html>no \x1b page"), self.answer(200, "<html>hello"),
                               b"SSH-2.0-OpenSSH_9.2\r\n", self.answer(200, '{"gang":7}')):
                    self.hear(daemon, b"GET", lambda _, answer=answer: answer)
                self.hear(daemon, b"GET", lambda _, gang=gang: self.news(gang, "running"))
                self.hear(daemon, b"GET", lambda _, gang=gang: self.answer(404, f"there is no gang {gang['id']}\n"))
                done = self.finish(job, code=75)
                self.assertEqual(done.stderr.count(f"{who} answered with something that isn't ddprund's: "), 1, done.text)
                self.assertIn('HTTP 404, "<html>no \\x1b page"; ', done.stderr)
                self.assertIn(f"the ddprund no longer knows job nodes:{gang['id']}", done.stderr)
                self.assertNotIn("left to itself", done.stderr)

    def test_a_warning_has_the_name_of_who_speaks(self):
        record = os.path.join(self.place, "ddprun", "jobs", "ssh-x-12345")
        os.makedirs(record)
        self.write(record, "job.json", "no job")
        done = self.ddprunctl("jobs", "--to", "ssh", XDG_STATE_HOME=self.place)
        self.assertEqual((done.returncode, done.stdout), (0, "no jobs\n"), done.text)
        self.assertTrue(done.stderr.startswith("ddprunctl: warning: ssh:x-12345 is left out"), done.text)

    @unittest.skipIf(os.environ.get("DDPRUN_SANITIZE"), "a sanitizer's frames are larger")
    def test_a_small_stack_is_enough(self):
        with socket.create_server(("127.0.0.1", 0)) as daemon:
            daemon.settimeout(20)
            submit = self.start("-c", 'ulimit -Ss 48; exec "$0" submit "$1" --wait', harness.DDPRUNCTL,
                                self.mute_job(daemon), program="/bin/sh")
            self.hear(daemon, b"GET", lambda _: "{}")
            gang = json.loads(self.hear(daemon, b"POST", lambda body: self.news(body, "ended")))
            for _ in range(3):  # requests for the gang's state, output and end
                self.hear(daemon, b"GET", lambda _: self.news(gang, "ended"))
            done = self.finish(submit)
        self.assertEqual(done.returncode, 0, done.text)

    @staticmethod
    def answer(status, text):
        text = text.encode()
        return b"HTTP/1.1 %d X\r\nConnection: close\r\nContent-Length: %d\r\n\r\n" % (status, len(text)) + text

    @staticmethod
    def news(spec, phase):
        spec = json.loads(spec) if isinstance(spec, (str, bytes)) else spec
        return json.dumps({"gang": {
            "id": spec["id"], "user": spec["user"], "name": spec["name"], "phase": phase, "before": 0, "reason": "",
            "exit_code": 0, "cancelled": "", "changes": 1, "min_nodes": 1, "max_nodes": 1, "workers": "1", "submitted": 1,
            "began": 0, "over": 0, "parts": []}})

    def hear(self, server, method, answer):
        """Takes a request, sends answer(body) unless that is None, and returns the body. Sends bytes unchanged."""
        connection, _ = server.accept()
        with connection, connection.makefile("rb") as said:
            self.assertTrue(said.readline().startswith(method))
            size = 0
            for line in iter(said.readline, b"\r\n"):
                if line.lower().startswith(b"content-length:"):
                    size = int(line.split(b":")[1])
            body = said.read(size)
            text = answer(body)
            if text is None:
                return body
            connection.sendall(text if isinstance(text, bytes) else self.answer(200, text))
        return body

    def test_a_bad_token_is_named_with_its_flag_or_its_key(self):
        done = self.ddprunctl("logs", "nodes:x-12345", self.flags[0], "--token-file=/none")
        self.check_one_line(done, "--token-file: can't take the secret in /none: ")
        self.token_file = "/none"
        done = self.ddprunctl("submit", self.job_file("true"))
        self.check_one_line(done, "to.nodes.token_file: can't take the secret in /none: ")

    def test_flags_do_not_get_round_the_slots(self):
        """ddprunctl refuses each spelling of these flags, and sends nothing."""
        for flags, said in ((["--nproc_per_node=4"], "say workers_per_node in its place"),
                            (["--nproc=4"], "say workers_per_node in its place"),
                            (["--nnodes=2"], "say nodes in its place"),
                            (["-H", "-x"], "--hosts is not the job's to say"),
                            (["--standing-agents"], "--standing-agents is not the job's to say"),
                            (["--env=A=1"], "say [environment]"),
                            (["--rdzv-endpoint=x"], "say to.nodes.endpoint in its place")):
            with self.subTest(flags=flags):
                path = self.write(self.place, "round.toml", 'name = "r"\ncommand = ["true"]\n'
                                  f'flags = {json.dumps(flags)}\n[to.nodes]\nendpoint = "127.0.0.1:1"\n')
                self.check_one_line(self.ddprunctl("submit", path), f"{path}: flags: ", said)

    def test_a_record_that_can_not_be_written_has_the_code_of_lost_output(self):
        path = self.write(self.place, "ssh.toml", 'name = "r"\ncommand = ["true"]\n[to.ssh]\nhosts = ["localhost"]\n')
        done = self.ddprunctl("submit", path, XDG_STATE_HOME="/dev/null")
        self.check_one_line(done, "can't make /dev/null/ddprun/jobs: Not a directory", code=74)
        for where, said in (("/dev/null/logs", "can't make /dev/null/logs: Not a directory"),
                            ("/proc/self", "can't open /proc/self/r-")):
            self.write(self.place, "ssh.toml", f'name = "r"\ncommand = ["true"]\nlog_dir = "{where}"\n'
                       '[to.ssh]\nhosts = ["localhost"]\n')
            self.check_one_line(self.ddprunctl("submit", path, XDG_STATE_HOME=self.place), said, code=74)

    def test_an_unknown_job_of_the_queue_is_said(self):
        done = self.ddprunctl("status", "nodes:none", *self.flags, code=2)
        self.assertIn("the ddprund knows no job nodes:none", done.stderr)
        self.assertNotIn("gang", done.stderr)

    def test_an_id_that_can_be_none_is_not_asked_for(self):
        for bad in ("nodes:a b", "nodes:x HTTP/1.0\r\nX: y", "nodes:x/logs", "nodes:"):
            for command in ("status", "cancel", "logs"):
                with self.subTest(bad=bad, command=command):
                    self.check_one_line(self.ddprunctl(command, bad, *self.flags), "is no job")


if __name__ == "__main__":
    harness.main()
