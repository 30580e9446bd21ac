#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tests `ddprunctl doctor` as a process: exit status, JSON, thresholds, a rendezvous, services that never answer."""
import calendar
import ctypes
import glob
import json
import os
import re
import shutil
import socket
import struct
import subprocess
import sys
import threading
import time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "..", "launcher"))
import harness  # noqa: E402

PAGE = os.path.join(harness.SOURCE, "docs/doctor.md")
FAKETIME = glob.glob("/usr/lib/*/faketime/libfaketime.so.1")
PATIENT = "--timeout=20"  # for services that do answer, on a busy machine
FAKE_NVML = os.path.join(harness.BIN, "libddprun_fake_nvml.so")


# The commands run in namespaces of their own. The only name server there has an address that nobody has.
SILENT_NAMES = """ip link set lo up && ip route add 192.0.2.1/32 dev lo && hostname gpu07 &&
    mount --bind "$1/resolv.conf" /etc/resolv.conf && mount --bind "$1/hosts" /etc/hosts || exit 77
    exec "$2" doctor --json --only=host_name"""


class SilentFileSystem:
    """A mounted file system (FUSE) whose server answers INIT, the first request, and no other one."""

    INIT, FORCE_AND_DETACH = 26, 1 | 2

    def __init__(self, folder):
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._folder = folder.encode()
        self._fd = os.open("/dev/fuse", os.O_RDWR | os.O_CLOEXEC)
        options = f"fd={self._fd},rootmode=40000,user_id=0,group_id=0".encode()
        if self._libc.mount(b"silent", self._folder, b"fuse", 0, options) != 0:
            error = ctypes.get_errno()
            os.close(self._fd)
            raise OSError(error, os.strerror(error))
        self.asked = threading.Event()  # set when a request has come that gets no answer
        self._server = threading.Thread(target=self._serve)
        self._server.start()

    def _serve(self):
        while True:
            try:
                _, operation, unique = struct.unpack_from("<IIQ", os.read(self._fd, 1 << 17))
            except OSError:  # the file system was unmounted
                return
            if operation != self.INIT:
                self.asked.set()
                continue
            answer = struct.pack("<IIIIHHI", 7, 31, 65536, 0, 12, 10, 65536).ljust(64, b"\0")
            os.write(self._fd, struct.pack("<IiQ", 16 + len(answer), 0, unique) + answer)

    def end(self):
        self._libc.umount2(self._folder, self.FORCE_AND_DETACH)
        self._server.join(10)
        os.close(self._fd)


class Doctor(harness.Case):
    def root(self, **files):
        """Returns the root of a machine made of files. In the arguments' names "__" stands for "/"."""
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
        done = self.ddprunctl("doctor", "--json", PATIENT)
        page = json.loads(done.stdout)
        self.assertEqual((done.returncode, done.stderr), (page["exit_code"], ""), done.text)
        code = page["exit_code"]
        self.assertLess(min(self.doctor(PATIENT, code=code)[1] for _ in range(3)), 1)
        self.assertEqual((page["tier"], page["host"]), ("quick", socket.gethostname()))
        said = calendar.timegm(time.strptime(page["time"], "%Y-%m-%dT%H:%M:%SZ"))
        self.assertLess(abs(said - before), 60)
        listed = [line.split()[0] for line in self.doctor("--list", code=0)[0].splitlines()]
        self.assertEqual([finding["check"] for finding in page["findings"]], listed)
        self.assertEqual(sum(page["counts"].values()), len(listed))
        for finding in page["findings"]:
            self.assertEqual(set(finding), {"check", "group", "verdict", "seen", "wanted", "why", "fix"})
            self.assertIn(finding["verdict"], ("ok", "warn", "fail", "unknown", "skipped"))
            self.assertTrue(finding["seen"], finding)
            if finding["verdict"] in ("warn", "fail"):
                self.assertTrue(finding["fix"] and finding["why"], finding)
        table = self.doctor(PATIENT, code=code)[0]
        self.assertRegex(table.splitlines()[-1], rf"^{socket.gethostname()}: {page['verdict']} \(\d+ fail, .*s\)$")

    def test_nothing_is_changed(self):
        """No system call opens a file for writing or changes one. adjtimex only reads."""
        if not shutil.which("strace"):
            self.skipTest("strace is not installed: scripts/setup.sh full")
        if os.environ.get("DDPRUN_SANITIZE"):
            self.skipTest("a sanitizer's own calls would be in it")
        place = self.scratch()
        # Each thread has a file of its own (-ff), so no call is cut in two by another thread's.
        log = os.path.join(place, "calls")
        traced = "trace=%file,ftruncate,fchmod,adjtimex,clock_adjtime,setrlimit,prlimit64"
        argv = ["strace", "-ff", "-qq", "-o", log, "-e", traced, harness.DDPRUNCTL, "doctor", "--json", PATIENT]
        done = subprocess.run(argv, env=harness.environment(), capture_output=True, text=True, timeout=60)
        if "ptrace" in done.stderr and not done.stdout:
            self.skipTest("no process may be traced here: " + done.stderr)
        self.assertGreater(json.loads(done.stdout)["counts"]["ok"], 5)
        calls = []
        for name in os.listdir(place):
            with open(os.path.join(place, name)) as f:
                calls += [call.rstrip() for call in f]
        self.assertTrue(any("/proc/sys/net/core/rmem_max" in call for call in calls), calls)
        looking = re.compile(r"(access|faccessat2?|stat|lstat|newfstatat|statx|statfs|readlink|getcwd)\(|"
                             r"execve\(\"[^\"]*/ddprunctl\"|open(at)?\([^)]*O_RDONLY[A-Z_|]*(\)| <)|"
                             r"openat\(AT_FDCWD, \"/dev/null\"|(adjtimex|clock_adjtime)\(.*modes=0[,}]|"
                             r"prlimit64\(0, \w+, NULL|---|\+\+\+")
        self.assertEqual([call for call in calls if not looking.match(call)], [])

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

    def test_an_error_in_a_flag_is_one_line(self):
        self.check_refused("--only=rmem_mx", says='there is no check "rmem_mx" (did you mean rmem_max?)')
        self.check_refused("--skip=", "--only=", "--no-such-flag", says="--no-such-flag")
        self.check_refused("--timeout=0", says="--timeout")
        self.check_refused("--timeout=nan", says="--timeout")
        self.check_refused("--deadline=nan", "--tier=standard", says="--deadline")
        self.check_refused("--root=/nonexistent", says="--root=/nonexistent: there is no such directory")
        self.check_refused("--rdzv-endpoint=a:b:c", says="--rdzv-endpoint=a:b:c: ")
        self.check_refused("--thresholds=/nonexistent", says="can't read /nonexistent: No such file")

    def test_thresholds_are_a_regular_file_that_is_read_whole_or_refused(self):
        path = os.path.join(self.scratch(), "doctor.toml")
        os.mkfifo(path)
        self.check_refused(f"--thresholds={path}", says=f"can't read {path}: it is a pipe")
        self.check_refused("--thresholds=/dev/zero", says="can't read /dev/zero: it is no regular file")
        os.remove(path)
        self.write(os.path.dirname(path), "doctor.toml", "# a comment\n" * 10_000 + "mtu.wrn = 1\n")  # 120 kB
        self.check_refused(f"--thresholds={path}", says=f"{path}:10001: unknown key mtu.wrn")
        os.truncate(path, 2 << 20)
        self.check_refused(f"--thresholds={path}", says=f"can't read {path}: it has more than 1 MiB")

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
        flags = (f"--rdzv-endpoint={endpoint}", "--only=endpoint,interface", PATIENT)
        found = self.found(*flags, code=1)
        for name in ("endpoint", "endpoint_clock", "endpoint_version"):
            self.assertEqual(found[name]["verdict"], "ok", found)
        self.assertRegex(found["endpoint_clock"]["seen"], r"^its clock is [01]\.")
        self.assertEqual(found["interface"]["verdict"], "warn")  # the interface is loopback
        self.assertIn(f"lo (127.0.0.1) towards {endpoint}", found["interface"]["seen"])

    def test_a_rendezvous_with_a_token_and_tls(self):
        certs, token = self.certs(), self.token()
        _, endpoint = self.ddprund(*self.tls_server(certs), f"--token-file={token}")
        flags = (f"--rdzv-endpoint={endpoint}", "--only=endpoint", PATIENT)
        self.doctor(*flags, f"--tls-ca={certs}/ca.pem", f"--token-file={token}", code=0)
        self.assertIn("wants a token: give --token-file",
                      self.doctor(*flags, f"--tls-ca={certs}/ca.pem", code=2)[0])

    def test_somebody_else_s_json_is_no_rendezvous(self):
        text = b'{"version":"0.1.0","time_seconds":1,"uptime_seconds":1,"jobs":[]}'
        with socket.create_server(("127.0.0.1", 0)) as other:
            def serve():
                connection, _ = other.accept()
                with connection:
                    connection.recv(4096)
                    connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(text) + text)
            thread = threading.Thread(target=serve)
            thread.start()
            found = self.found(f"--rdzv-endpoint=127.0.0.1:{other.getsockname()[1]}", "--only=endpoint", PATIENT, code=2)
            thread.join()
        self.assertEqual(found["endpoint"]["seen"], "what answers there is no ddprun rendezvous")

    def test_a_rendezvous_with_another_clock(self):
        if not FAKETIME or os.environ.get("DDPRUN_SANITIZE"):
            self.skipTest("needs libfaketime, and no sanitizer")
        _, endpoint = self.ddprund()
        found = self.found(f"--rdzv-endpoint={endpoint}", "--only=endpoint", PATIENT, code=1, LD_PRELOAD=FAKETIME[0],
                           FAKETIME="+10s", FAKETIME_DONT_FAKE_MONOTONIC="1")
        self.assertRegex(found["endpoint_clock"]["seen"], r"^its clock is (9\.|10\.)\d s behind ours$")
        self.assertEqual(found["endpoint_clock"]["verdict"], "warn")

    def test_a_rendezvous_that_is_away_or_silent(self):
        found = self.found(f"--rdzv-endpoint=127.0.0.1:{harness.free_port()}", "--only=endpoint", PATIENT,
                           code=2)
        self.assertIn("Connection refused", found["endpoint"]["seen"])
        with socket.socket() as silent:
            silent.bind(("127.0.0.1", 0))
            silent.listen()
            endpoint = f"127.0.0.1:{silent.getsockname()[1]}"
            out, took = self.doctor(f"--rdzv-endpoint={endpoint}", "--only=endpoint", "--timeout=10", code=2)
            self.assertIn("did not answer in time", out)
            self.assertLess(took, 20)

    def silent_endpoint(self):
        """Returns the endpoint of a listener that never sends anything."""
        silent = socket.socket()
        self.addCleanup(silent.close)
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        return f"127.0.0.1:{silent.getsockname()[1]}"

    def test_several_endpoints_share_the_time_so_that_silent_ones_hide_no_other(self):
        _, endpoint = self.ddprund()
        silent = [self.silent_endpoint() for _ in range(2)]
        flags = ("--only=endpoint", "--timeout=6")
        self.doctor(f"--rdzv-endpoint={','.join([*silent, endpoint])}", *flags, code=0)
        out, took = self.doctor(f"--rdzv-endpoint={','.join(silent)}", "--only=endpoint", "--timeout=2", code=2)
        self.assertEqual(out.count("did not answer in time"), 2, out)
        self.assertLess(took, 15)

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
            patience = [] if text == "hang" else [PATIENT]
            found = self.found("--only=gpu_memory", *patience, code=code, DDPRUN_NVML_LIBRARY=FAKE_NVML,
                               FAKE_NVML_LIST=processes)
            self.assertLess(time.monotonic() - began, 15)
            self.assertEqual(found["gpu_memory"]["verdict"], verdict)
            self.assertIn(says, found["gpu_memory"]["seen"])

    def test_the_state_of_gpus_is_judged_by_what_nvml_says(self):
        if not os.path.exists(FAKE_NVML):
            self.skipTest("libddprun_fake_nvml is not built")
        processes, state = self.write(self.scratch(), "list", ""), os.path.join(self.scratch(), "state")
        good = {"compute_mode": 0, "persistence": 1, "ecc_corrected": 7, "ecc_uncorrected": 0, "remap_pending": 0,
                "remap_failed": 0, "slowdown": 4, "nvlinks_active": 12, "nvlinks_inactive": 0}

        def found(code, **bad):
            with open(state, "w") as f:
                f.write("-1 cuda 12080\n")
                for device in (0, 1):
                    for key, value in {**good, **(bad if device else {})}.items():
                        f.write(f"{device} {key} {value}\n")
            return self.found("--only=gpu", PATIENT, code=code, DDPRUN_NVML_LIBRARY=FAKE_NVML, FAKE_NVML_LIST=processes,
                              FAKE_NVML_STATE=state)

        names = ("gpu_compute_mode", "gpu_persistence", "gpu_ecc", "gpu_row_remap", "gpu_throttle", "gpu_nvlink")
        well = found(0)
        self.assertEqual({well[name]["verdict"] for name in names}, {"ok"}, well)
        self.assertEqual(well["gpu_nvlink"]["seen"], "12 active on each GPU")
        ill = found(2, compute_mode=2, persistence=0, ecc_uncorrected=1, remap_pending=1, slowdown=0x48,
                    nvlinks_active=11, nvlinks_inactive=1)
        self.assertEqual([ill[name]["verdict"] for name in names], ["fail", "warn", "fail", "fail", "warn", "fail"], ill)
        for name in names:
            self.assertTrue(ill[name]["seen"].startswith("GPU 1: "), ill[name])
        self.assertEqual((well["gpu_count"]["verdict"], well["gpu_count"]["seen"]), ("ok", "2 answer NVML"))
        thresholds = self.write(self.scratch(), "doctor.toml", "gpu_count.least = 4\n")
        few = self.found("--only=gpu_count", PATIENT, f"--thresholds={thresholds}", code=2, DDPRUN_NVML_LIBRARY=FAKE_NVML,
                         FAKE_NVML_LIST=processes, FAKE_NVML_STATE=state)["gpu_count"]
        self.assertEqual((few["verdict"], few["seen"], few["wanted"]), ("fail", "2 answer NVML", "at least 4"))

    def test_a_file_system_that_never_answers_is_unknown(self):
        folder = self.scratch()
        try:
            silent = SilentFileSystem(folder)
        except OSError as missing:
            self.skipTest(f"a file system of our own: {missing}")
        self.addCleanup(silent.end)
        limits = self.write(self.scratch(), "doctor.toml", "disk.fail = 0\ndisk.used_warn = 100\n")
        out, took = self.doctor("--only=log_dir,tmp_dir", "--log-dir", folder, "--timeout=2", f"--thresholds={limits}",
                                code=3)
        self.assertTrue(silent.asked.is_set())
        self.assertRegex(out, r"(?m)^unknown log_dir +--log-dir: no answer within the deadline$")
        self.assertRegex(out, r"(?m)^ok +1: tmp_dir$")
        self.assertLess(took, 20)

    def test_a_disk_is_as_full_as_df_says(self):
        limits = self.write(self.scratch(), "doctor.toml", "disk.fail = 0\ndisk.used_warn = 100\n")
        folder = self.scratch()
        seen = self.found("--only=log_dir", "--log-dir", folder, f"--thresholds={limits}", PATIENT, code=0)
        says = subprocess.run(["df", "--output=pcent", folder], text=True, capture_output=True, check=True).stdout
        used = int(re.search(r"(\d+) % used", seen["log_dir"]["seen"])[1])
        self.assertLessEqual(abs(used - int(says.split()[1].rstrip("%"))), 2, says)  # df rounds up; others write

    def test_a_network_adapter_that_hides_its_speed_is_unknown(self):
        folder = self.scratch()
        try:
            silent = SilentFileSystem(folder)
        except OSError as missing:
            self.skipTest(f"a file system of our own: {missing}")
        self.addCleanup(silent.end)
        device = "sys__class__net__eth0__"
        root = self.root(**{device + "mtu": "1500", device + "operstate": "up", device + "flags": "0x1003",
                            "proc__sys__net__core__rmem_max": "212992"})
        os.symlink(os.path.join(folder, "speed"), os.path.join(root, "sys/class/net/eth0/speed"))
        began = time.monotonic()
        found = self.found("--root", root, "--only=mtu,rmem_max,tcp_fin_timeout", "--timeout=2", code=3)
        self.assertLess(time.monotonic() - began, 20)
        self.assertTrue(silent.asked.is_set())
        for name in ("mtu", "rmem_max"):
            self.assertEqual((found[name]["verdict"], found[name]["seen"]),
                             ("unknown", "the speed of the network adapters: no answer within the deadline"))

    def test_a_name_server_that_never_answers_is_unknown(self):
        folder = self.root(**{"resolv.conf": "nameserver 192.0.2.1\n", "hosts": "127.0.0.1 localhost\n"})
        done = subprocess.run(["unshare", "-mnu", "sh", "-c", SILENT_NAMES, "sh", folder, harness.DDPRUNCTL],
                              text=True, capture_output=True, timeout=60, env=harness.environment())
        if done.returncode not in (0, 1, 2, 3) or not done.stdout:
            self.skipTest(f"no namespaces here: {done.stderr.strip()}")
        page = json.loads(done.stdout)
        self.assertEqual((page["exit_code"], page["findings"][0]["seen"]), (3, "gpu07: no answer within the deadline"))
        self.assertLess(page["seconds"], 10)

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
