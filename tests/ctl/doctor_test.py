#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""`ddprunctl doctor` as a process: exit status, JSON, thresholds, a rendezvous, and what never answers."""
import json
import os
import re
import socket
import subprocess
import sys
import time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "..", "launcher"))
import harness  # noqa: E402

PAGE = os.path.join(harness.SOURCE, "docs/doctor.md")
FAKE_NVML = os.path.join(harness.BIN, "libddprun_fake_nvml.so")


class Doctor(harness.Case):
    def root(self, **files):
        """A machine made of files: the path's "/" are "__"."""
        root = self.scratch()
        for name, text in files.items():
            path = os.path.join(root, name.replace("__", "/"))
            os.makedirs(os.path.dirname(path), exist_ok=True)
            with open(path, "w") as f:
                f.write(text)
        return root

    def doctor(self, *flags, code, **more):
        began = time.monotonic()
        done = self.ddprunctl("doctor", *flags, **more)
        took = time.monotonic() - began
        self.assertEqual((done.returncode, done.stderr), (code, ""), done.text)
        return done.stdout, took

    def found(self, *flags, code, **more):
        page = json.loads(self.doctor("--json", *flags, code=code, **more)[0])
        self.assertEqual(page["exit_code"], code)
        return {finding["check"]: finding for finding in page["findings"]}

    def check_refused(self, *flags, says):
        self.check_one_line(self.ddprunctl("doctor", *flags), says, code=3)

    def test_this_machine_is_looked_at_in_less_than_a_second(self):
        before = time.time()
        done = self.ddprunctl("doctor", "--json")
        page = json.loads(done.stdout)
        self.assertEqual((done.returncode, done.stderr), (page["exit_code"], ""), done.text)
        self.assertLess(page["seconds"], 1)
        self.assertEqual((page["tier"], page["host"]), ("quick", socket.gethostname()))
        self.assertLess(abs(time.mktime(time.strptime(page["time"], "%Y-%m-%dT%H:%M:%SZ")) - time.timezone - before), 60)
        listed = [line.split()[0] for line in self.doctor("--list", code=0)[0].splitlines()]
        self.assertEqual([finding["check"] for finding in page["findings"]], listed)
        self.assertEqual(sum(page["counts"].values()), len(listed))
        for finding in page["findings"]:
            self.assertEqual(set(finding), {"check", "group", "verdict", "seen", "wanted", "why", "fix"})
            self.assertIn(finding["verdict"], ("ok", "warn", "fail", "unknown", "skipped"))
            self.assertTrue(finding["seen"], finding)
            if finding["verdict"] in ("warn", "fail"):
                self.assertTrue(finding["fix"] and finding["why"], finding)
        table = self.doctor(code=page["exit_code"])[0]
        self.assertRegex(table.splitlines()[-1], rf"^{socket.gethostname()}: {page['verdict']} \(\d+ fail, .*s\)$")

    def test_exit_status_is_a_nagios_plug_ins(self):
        root = self.root(proc__sys__net__core__somaxconn="4096\n",
                         proc__self__limits="Max open files  1024  1024  files\n")
        name = ("--root", root)
        self.doctor(*name, "--only=somaxconn", code=0)
        self.doctor(*name, "--only=somaxconn,open_files", code=2)
        self.doctor(*name, "--only=somaxconn,open_files", "--skip=limits", code=0)
        self.doctor("--root", self.root(proc__sys__net__core__somaxconn="128"), "--only=somaxconn", code=1)
        self.doctor("--root", self.root(proc__sys__net__core__somaxconn="much"), "--only=somaxconn", code=3)
        self.doctor("--root", self.root(), "--only=somaxconn", code=0)
        with open("/dev/full", "w") as full:
            done = subprocess.run([harness.DDPRUNCTL, "doctor", "--only=proxies"], stdout=full, timeout=60)
        self.assertEqual(done.returncode, 74)

    def test_what_is_wrong_with_a_flag_is_one_line(self):
        self.check_refused("--only=rmem_mx", says='there is no check "rmem_mx" (did you mean rmem_max?)')
        self.check_refused("--skip=", "--only=", "--no-such-flag", says="--no-such-flag")
        self.check_refused("--rdzv-endpoint=a:b:c", says="--rdzv-endpoint=a:b:c: ")
        self.check_refused("--thresholds=/nonexistent", says="can't read /nonexistent: No such file")

    def test_thresholds_of_a_file(self):
        root = self.root(proc__sys__net__core__somaxconn="128")
        path = os.path.join(self.scratch(), "doctor.toml")

        def write(text):
            with open(path, "w") as f:
                f.write(text)

        flags = ("--root", root, "--only=somaxconn", "--thresholds", path)
        write("[somaxconn]\nwarn = 128\n")
        self.doctor(*flags, code=0)
        write("somaxconn.warn = 129\n")
        finding = self.found(*flags, code=1)["somaxconn"]
        self.assertEqual((finding["seen"], finding["wanted"]), ("128", "at least 129"))
        self.assertEqual(finding["fix"], "sysctl -w net.core.somaxconn=129")
        write("[somaxcon]\nwarn = 1\n")
        self.check_refused(*flags, says=f"{path}:2: unknown key somaxcon.warn (did you mean somaxconn.warn?)")

    def test_a_rendezvous_that_answers(self):
        _, endpoint = self.ddprund()
        flags = (f"--rdzv-endpoint={endpoint}", "--only=endpoint,interface")
        found = self.found(*flags, code=1)
        for name in ("endpoint", "endpoint_clock", "endpoint_version"):
            self.assertEqual(found[name]["verdict"], "ok", found)
        self.assertIn("its clock is 0.", found["endpoint_clock"]["seen"])
        self.assertEqual(found["interface"]["verdict"], "warn")  # loopback
        self.assertIn(f"lo (127.0.0.1) towards {endpoint}", found["interface"]["seen"])

    def test_a_rendezvous_that_is_away_or_silent(self):
        found = self.found(f"--rdzv-endpoint=127.0.0.1:{harness.free_port()}", "--only=endpoint", code=2)
        self.assertIn("Connection refused", found["endpoint"]["seen"])
        with socket.socket() as silent:
            silent.bind(("127.0.0.1", 0))
            silent.listen()
            out, took = self.doctor(f"--rdzv-endpoint=127.0.0.1:{silent.getsockname()[1]}", "--only=endpoint", code=2)
            self.assertIn("did not answer in time", out)
            self.assertLess(took, 5)

    def test_an_nvml_that_never_answers_is_unknown(self):
        if not os.path.exists(FAKE_NVML):
            self.skipTest("libddprun_fake_nvml is not built")
        processes = os.path.join(self.scratch(), "list")
        for text, code, verdict, says in (("", 0, "ok", "no process holds any"),
                                          (f"1 4711 {12 << 30}\n", 1, "warn", "GPU 1: 12.0 GiB by pid 4711"),
                                          ("1 4711 4096\n", 0, "ok", "no process holds any"),
                                          ("broken", 0, "skipped", "NVML can't be used"),
                                          ("hang", 3, "unknown", "no answer within the deadline")):
            with open(processes, "w") as f:
                f.write(text)
            began = time.monotonic()
            found = self.found("--only=gpu_memory", code=code, DDPRUN_NVML_LIBRARY=FAKE_NVML, FAKE_NVML_LIST=processes)
            self.assertLess(time.monotonic() - began, 5)
            self.assertEqual(found["gpu_memory"]["verdict"], verdict)
            self.assertIn(says, found["gpu_memory"]["seen"])

    def test_the_page_has_every_check_and_every_threshold(self):
        with open(PAGE, encoding="utf-8") as f:
            page = f.read()
        shown = page[page.index("## The checks"):page.index("## Thresholds")]
        for line in self.doctor("--list", code=0)[0].splitlines():
            for name in line.split()[:2]:
                self.assertIn(f"`{name}`", shown)
        with open(os.path.join(harness.SOURCE, "ctl/doctor/thresholds.cc"), encoding="utf-8") as f:
            keys = re.findall(r'^ +\{"([a-z_]+\.[a-z_]+)", ', f.read(), flags=re.M)
        self.assertGreater(len(keys), 15)
        for key in keys:
            self.assertIn(f"`{key}`", page[page.index("## Thresholds"):])


if __name__ == "__main__":
    harness.main()
