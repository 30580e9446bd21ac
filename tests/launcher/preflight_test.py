#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tests the checks of a node before it joins, and before each round. A node that fails them stays out."""
import json
import os
import re
import signal

import harness
import netns

PORT = 29400
ONE_ROUND = harness.SHOW + '; [ "$DDPRUN_ROUND" != 1 ] || exec sleep 600'


class OneNode(harness.Case):
    def test_the_command_runs_once_before_the_workers_of_all_rounds(self):
        done = self.ddprun("--standalone", "--max-restarts=1",
                           "--preflight", 'echo "checked for $LOCAL_WORLD_SIZE" >&2', "sh", "-c",
                           "echo worked; exit $((1 - TORCHELASTIC_RESTART_COUNT))", code=0)
        self.assertEqual(done.stderr.count("checked for 1"), 1, done.text)
        self.assertEqual(done.stdout.count("worked"), 2, done.text)

    def test_a_command_that_fails_keeps_the_node_out(self):
        done = self.ddprun("--standalone", "--preflight=echo no room in rack 7; exit 3", "echo", "worked", code=75)
        self.assertEqual(done.stdout, "")
        self.assertIn('ddprun: preflight "echo no room in rack 7; exit 3" failed with exit code 3; '
                      'its last line: no room in rack 7\n',
                      done.stderr)

    def test_a_command_that_hangs_has_failed(self):
        done = self.ddprun("--standalone", "--preflight-timeout=0.3", "--preflight=sleep 600", "true", code=75)
        self.assertIn('preflight "sleep 600" had not ended after 0.3 s', done.stderr)

    def test_a_signal_ends_it(self):
        process = self.start("--standalone", "--preflight=echo begun >&2; sleep 600", "true")
        self.assertEqual(process.stderr.readline(), "begun\n")
        process.send_signal(signal.SIGINT)
        self.finish(process, code=130)

    def test_alone_what_is_wrong_with_the_node_is_only_said(self):
        done = self.ddprun("--standalone", "true", TMPDIR="/no/such/folder", code=0)
        self.assertIn("preflight: directory: no file can be made in /no/such/folder", done.stderr)

    def doctor_file(self, text=""):
        """Writes thresholds that this machine passes, except for those of `text`. Returns the file's path."""
        groups = ["cpu", "memory", "network", "disk", "cgroup", "environment", "gpu", "rdma", "sysctl"]
        return self.write(self.scratch(), "doctor.toml", f"skip = {groups}\n{text}")

    def test_alone_a_node_that_the_doctor_finds_unfit_ends_and_says_why(self):
        flags = ("--standalone", "--preflight-doctor=fail")
        done = self.ddprun(*flags, "--preflight=echo checked >&2", "echo", "worked",
                           DDPRUN_DOCTOR_THRESHOLDS=self.doctor_file())
        self.assertEqual((done.returncode, done.stdout, done.stderr), (0, "worked\n", "checked\n"), done.text)
        done = self.ddprun(*flags, "--preflight=echo checked >&2", "echo", "worked",
                           DDPRUN_DOCTOR_THRESHOLDS=self.doctor_file("open_files.fail = 1e15\n"))
        self.assertEqual((done.returncode, done.stdout), (75, ""), done.text)
        self.assertIn("ddprun: preflight: doctor: open_files: soft ", done.stderr)
        self.assertNotIn("checked", done.stderr)
        warns = self.doctor_file("open_files.warn = 1e15\n")
        done = self.ddprun(*flags, "echo", "worked", DDPRUN_DOCTOR_THRESHOLDS=warns)
        self.assertEqual((done.returncode, done.stderr), (0, ""), done.text)
        self.ddprun("--standalone", "--preflight-doctor=warn", "true", DDPRUN_DOCTOR_THRESHOLDS=warns, code=75)
        done = self.ddprun(*flags, "true", DDPRUN_DOCTOR_THRESHOLDS="/no/such/file", code=75)
        self.assertIn("failed with exit code 3; its last line: ddprunctl: can't read /no/such/file", done.stderr)

    def test_one_of_several_does_not_join(self):
        done = self.ddprun("--nnodes=2", f"--rdzv-endpoint=127.0.0.1:{harness.free_port()}", "true",
                           TMPDIR="/no/such/folder", timeout=20)
        self.assertEqual(done.returncode, 2, done.text)  # another node would fail, too
        self.assertEqual(done.stderr, "ddprun: preflight: directory: no file can be made in /no/such/folder: "
                         "No such file or directory; make room, or set TMPDIR to another one\n")


class SeveralNodes(harness.HostsCase):
    def setUp(self):
        self.hosts = netns.Hosts(4)
        self.addCleanup(self.hosts.close)

    def agent(self, index, *args, **more):
        return self.start(f"--rdzv-endpoint={self.hosts[0].address}:{PORT}", "--rdzv-id=job", "--no-python",
                          "--nnodes=2", "--spares=1", *args, "sh", "-c", ONE_ROUND,
                          host=self.hosts[index], **more)

    def test_a_node_that_fails_is_not_taken_the_next_one_is(self):
        first = self.agent(0)
        self.await_line(first, "waiting for nodes")
        self.finish(self.agent(1, "--preflight=exit 1"), timeout=20, code=75)
        good = self.agent(2, "--preflight=true")
        self.await_line(good, "round=1", stream="stdout")
        for process in (first, good):
            process.terminate()
            self.finish(process)

    def test_a_node_that_the_doctor_finds_unfit_leaves_its_reason_with_all_and_a_spare_is_taken(self):
        fit, unfit = OneNode.doctor_file(self), OneNode.doctor_file(self, "open_files.fail = 1e15\n")
        reports = [os.path.join(self.scratch(), "report.json") for _ in range(3)]

        def begin(index):
            return self.start(f"--rdzv-endpoint={self.hosts[0].address}:{PORT}", "--rdzv-id=job", "--no-python",
                              "--nnodes=2", "--spares=1", "--preflight-doctor=fail",
                              f"--report={reports[index]}", "sh", "-c", harness.SHOW, host=self.hosts[index],
                              DDPRUN_DOCTOR_THRESHOLDS=unfit if index == 1 else fit)

        first = begin(0)
        self.await_line(first, "waiting for nodes")
        bad = self.finish(begin(1), timeout=30)
        good = begin(2)
        done = [self.finish(process, timeout=30) for process in (first, good)]
        transcript = "\n".join(each.text for each in (bad, *done))
        self.assertEqual([each.returncode for each in done], [0, 0], transcript)
        self.assertEqual((bad.returncode, bad.stdout), (75, ""), transcript)
        why = "its preflight failed: doctor: open_files: soft "
        self.assertIn(why, bad.stderr)
        for each, path in zip(done, (reports[0], reports[2])):
            self.assertIn(f"left out of the job: node1 ({self.hosts[1].address}): {why}", each.stderr, transcript)
            with open(path) as f:
                report = json.load(f)
            self.assertEqual((report["state"], len(report["excluded"])), ("succeeded", 1), report)
            self.assertIn(why, report["excluded"][0])
            self.assertEqual(report["rounds"], 1)  # the failed check started no further round
        with open(reports[1]) as f:
            self.assertIn(why, json.load(f)["reason"])

    def test_a_spare_that_went_bad_leaves_and_the_next_spare_is_taken(self):
        folder = os.path.join(self.scratch(), "tmp")
        os.mkdir(folder)
        first = self.agent(0)
        self.await_line(first, "waiting for nodes")
        lost = self.agent(1)
        self.await_line(lost, "round=1", stream="stdout")
        bad = self.agent(2, TMPDIR=folder)
        self.await_line(bad, "ready as spare")
        good = self.agent(3)
        self.await_line(good, "spare")
        os.rmdir(folder)
        self.hosts[1].kill()
        ended = self.finish(bad, timeout=30)
        done = [self.finish(process, timeout=30) for process in (first, good)]
        transcript = "\n".join(each.text for each in (ended, *done))
        self.assertEqual([each.returncode for each in done], [0, 0], transcript)
        self.assertEqual(ended.returncode, 75, transcript)
        self.assertEqual(ended.stdout, "", transcript)
        why = f"its preflight failed: directory: no file can be made in {folder}"
        self.assertIn(why, ended.stderr, transcript)
        self.assertRegex(done[0].stderr, r"\(node2, [\d.]+\) is excluded: " + re.escape(why))
        workers = harness.parse_shown(done[1].stdout)
        self.assertEqual([(w["round"], w["world"]) for w in workers], [("3", "2")], transcript)


if __name__ == "__main__":
    harness.main_on_hosts()
