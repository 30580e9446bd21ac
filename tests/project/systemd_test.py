#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tests the shipped units under a real systemd (docs/systemd.md, docs/nodes.md)."""
import os
import re
import subprocess
import sys
import time
import unittest

SOURCE = os.environ.get("DDPRUN_SOURCE_DIR", os.path.abspath(__file__ + "/../../.."))
BIN = os.environ.get("DDPRUN_BIN_DIR", os.path.join(SOURCE, "build/release/bin"))
sys.path.insert(0, os.path.join(SOURCE, "tests/support"))
import booted  # noqa: E402
import runner  # noqa: E402

NEEDED = ("ddprun", "ddprund", "ddprunctl", "ddprun-agent", "ddprun-warden")
UNITS = ("ddprund.service", "ddprund.socket", "ddprun-agent@.service")
AGENT = "ddprun-agent@alice"
TOKEN = "a token of a test alone\n"
# The drop-in of docs/systemd.md, with a watchdog that is faster than half a minute.
TOKEN_OF_DAEMON = ("[Service]\nWatchdogSec=1s\nLoadCredential=token:/etc/ddprun/token\n"
                   "Environment=DDPRUN_TOKEN_FILE=%d/token\n")
SECONDS = 30


class Systemd(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        if not all(os.path.exists(os.path.join(BIN, name)) for name in NEEDED):
            raise unittest.SkipTest("only a part of the tree is built")
        cls.machine = booted.Booted(cls, BIN)
        for unit in UNITS:
            with open(os.path.join(SOURCE, "configs/systemd", unit), encoding="utf-8") as file:
                cls.machine.write(f"/etc/systemd/system/{unit}", file.read())
        cls.machine.write("/etc/systemd/system/ddprund.service.d/token.conf", TOKEN_OF_DAEMON)
        cls.machine.write("/etc/ddprun/token", TOKEN, mode="600")
        made = cls.machine.run("useradd", "--create-home", "alice")
        if made.returncode != 0:
            raise AssertionError(made.stdout)
        cls.machine.write("/home/alice/token", TOKEN, owner="alice", mode="600")
        cls.machine.write("/home/alice/.config/ddprun/ddprun.toml", owner="alice", text=(
            'rdzv_endpoint = "127.0.0.1:29400"\ntoken_file = "/home/alice/token"\n'))

    def setUp(self):
        self.addCleanup(self.machine.run, "systemctl", "stop", AGENT, "ddprund.socket", "ddprund.service")
        self.systemctl("start", "ddprund.socket", "ddprund.service", AGENT)

    def systemctl(self, *words):
        done = self.machine.run("systemctl", *words)
        self.assertEqual(done.returncode, 0, f"{done.stdout}\n{self.journal()}")
        return done.stdout

    def property(self, unit, name):
        return self.systemctl("show", unit, "--property", name, "--value").strip()

    def journal(self):
        self.machine.run("journalctl", "--sync")
        return self.machine.run("journalctl", "--unit=ddprund", f"--unit={AGENT}", "--no-pager").stdout

    def wait_until(self, condition, what):
        deadline = time.monotonic() + SECONDS
        while not condition():
            self.assertLess(time.monotonic(), deadline, f"{what}\n{self.journal()}")
            time.sleep(0.05)

    def gang(self, script):
        """Returns the command that alice types once."""
        return self.machine.command("runuser", "--user=alice", "--", "env", "HOME=/home/alice", "sh", "-c",
                                    'cd; exec ddprun --standing-agents --nproc_per_node=2 sh -c "$0"', script)

    def start_gang(self, script):
        process = subprocess.Popen(self.gang(script), text=True, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                   stderr=subprocess.STDOUT)
        self.addCleanup(lambda: (process.kill(), process.communicate()))
        return process

    def said_until_begun(self, gang):
        """Returns the gang's output up to the lines with which both of its workers begin."""
        said = ""
        while said.count("begun") < 2:
            line = gang.stdout.readline()
            self.assertTrue(line, said + self.journal())
            said += line
        return said

    def test_a_line_typed_once_runs_within_the_agent_s_unit(self):
        done = subprocess.run(self.gang('echo "$(id -un) $(tail -n 1 /proc/self/cgroup) memlock $(ulimit -l)"; env'),
                              text=True, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                              timeout=SECONDS)
        self.assertEqual(done.returncode, 0, f"{done.stdout}\n{self.journal()}")
        # This is the largest limit that the machine allows.
        most = self.machine.run("sh", "-c", "ulimit -l unlimited 2>/dev/null; ulimit -l").stdout.strip()
        within = re.findall(rf"alice 0::/system.slice/\S+/{AGENT}.service/\S+ memlock {most}\n", done.stdout)
        self.assertEqual(len(within), 2, done.stdout)
        self.assertIn("WORLD_SIZE=2", done.stdout)
        for name in ("NOTIFY_SOCKET", "WATCHDOG_", "LISTEN_", "CREDENTIALS_DIRECTORY", "DDPRUN_AGENT_SLOTS"):
            self.assertNotRegex(done.stdout, rf"(?m)^(\[\d\] )?{name}", done.stdout)

    def test_the_daemon_is_nobody_and_its_port_is_systemd_s(self):
        first = self.property("ddprund", "MainPID")
        self.assertNotEqual(self.machine.run("stat", "--format=%u", f"/proc/{first}").stdout.strip(), "0")
        self.assertEqual(self.property("ddprund", "PrivateUsers"), "no")  # otherwise it can't know connections' users
        self.assertIn("listening on", self.property("ddprund", "StatusText"))
        self.systemctl("stop", "ddprund.service")
        answer = self.machine.run("runuser", "--user=alice", "--", "env", "HOME=/home/alice", "ddprunctl", "status")
        self.assertEqual(answer.returncode, 0, answer.stdout)  # a connection to the socket starts the service
        self.assertNotEqual(self.property("ddprund", "MainPID"), first)

    def test_one_that_stands_still_is_begun_anew_and_its_jobs_go_on(self):
        gang = self.start_gang('echo begun; until [ -e /tmp/go ]; do sleep 0.05; done; echo "went on"')
        self.addCleanup(self.machine.run, "rm", "-f", "/tmp/go")
        said = self.said_until_begun(gang)
        first = self.property("ddprund", "MainPID")
        self.machine.run("kill", "-STOP", first)
        self.wait_until(lambda: self.property("ddprund", "MainPID") not in (first, "0"), "the watchdog begins it anew")
        self.wait_until(lambda: "is back" in self.journal(), "the job's node is back")
        self.machine.run("touch", "/tmp/go")
        said += gang.communicate(timeout=SECONDS)[0]
        self.assertEqual((gang.returncode, said.count("went on")), (0, 2), said + self.journal())

    def test_a_reload_ends_nothing(self):
        before = [self.property(unit, "MainPID") for unit in ("ddprund", AGENT)]
        self.systemctl("reload", "ddprund", AGENT)
        self.assertEqual([self.property(unit, "MainPID") for unit in ("ddprund", AGENT)], before)
        self.assertEqual(self.journal().count("are read again"), 2, self.journal())

    def test_the_agent_s_stop_ends_its_jobs_in_order(self):
        gang = self.start_gang('trap "echo ended in order; exit 0" TERM; echo begun; while :; do sleep 0.05; done')
        said = self.said_until_begun(gang)
        group = "/sys/fs/cgroup" + self.property(AGENT, "ControlGroup")
        self.systemctl("stop", AGENT)
        said += gang.communicate(timeout=SECONDS)[0]
        self.assertEqual((gang.returncode, said.count("ended in order")), (143, 2), said + self.journal())
        self.assertEqual(self.property(AGENT, "Result"), "success")
        self.assertNotEqual(self.machine.run("test", "-e", group).returncode, 0, f"{group} is left")

    def test_a_fault_that_no_restart_will_mend_is_no_reason_to_begin_again(self):
        self.systemctl("stop", AGENT)
        self.machine.write("/home/alice/token", "another token than the others'\n", owner="alice", mode="600")
        self.addCleanup(self.machine.write, "/home/alice/token", TOKEN, owner="alice", mode="600")
        self.machine.run("systemctl", "start", AGENT)
        self.wait_until(lambda: self.property(AGENT, "ActiveState") == "failed", "it has given up")
        self.assertEqual((self.property(AGENT, "ExecMainStatus"), self.property(AGENT, "NRestarts")), ("2", "0"),
                         self.journal())
        self.systemctl("reset-failed", AGENT)


if __name__ == "__main__":
    runner.main()
