#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tests a wheel of this build's programs in a fresh environment: its programs, and its removal.

    wheel_test.py [WHEEL]      another wheel, with the Python of this script
"""
import importlib.util
import os
import re
import shutil
import socket
import ssl
import struct
import subprocess
import sys
import sysconfig
import tempfile
import unittest
import urllib.request

SOURCE = os.environ.get("DDPRUN_SOURCE_DIR") or os.path.join(os.path.dirname(os.path.abspath(__file__)), "../..")
BIN = os.environ.get("DDPRUN_BIN_DIR", "")
sys.path.insert(0, os.path.join(SOURCE, "tests/support"))
import files  # noqa: E402
import runner  # noqa: E402
from ports import free_port  # noqa: E402

WHEEL = sys.argv.pop() if sys.argv[-1].endswith(".whl") else None
HELPERS = {"ddprun-warden", "ddprun-stacks", "ddprun-gpus", "ddprun-check", "libddprun_c.so"}
PAGES = {"man1/ddprun.1", "man1/ddprunctl.1", "man5/ddprun.toml.5", "man8/ddprund.8", "man8/ddprun-agent.8"}
PACK = os.path.join(SOURCE, "packaging/pack_wheel.py")


class Wheel(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(folder.cleanup)
        cls.folder = folder.name
        cls.environment = {k: v for k, v in os.environ.items() if not k.startswith(("DDPRUN_", "PYTHON"))}
        cls.environment.update(TMPDIR=cls.folder, PIP_DISABLE_PIP_VERSION_CHECK="1", PIP_NO_CACHE_DIR="1")
        cls.wheel = WHEEL or cls.pack("dist")
        cls.venv = os.path.join(cls.folder, "venv")
        cls.run_command(sys.executable, "-m", "venv", cls.venv)
        cls.before = files.below(cls.venv)
        install, cls.first_job = "pip install --no-index " + cls.wheel, None
        if not WHEEL:  # the two lines of README's first block
            with open(os.path.join(SOURCE, "README.md"), encoding="utf-8") as page:
                install, cls.first_job = page.read().split("<!-- test: pip -->\n```sh\n")[1].split("\n```")[0].splitlines()
        cls.path = [f"PATH={cls.venv}/bin:{os.environ['PATH']}", "PIP_NO_INDEX=1", "PIP_FIND_LINKS=" + os.path.dirname(cls.wheel)]
        cls.run_command("env", *cls.path, *install.split())

    @classmethod
    def pack(cls, into):
        stage = os.path.join(cls.folder, "stage")
        cls.run_command("env", "DESTDIR=" + stage, "cmake", "--install", os.path.dirname(BIN), "--strip", "--prefix", "/usr/local")
        tag = "py3-none-linux_" + os.uname().machine
        cls.run_command(sys.executable, PACK, stage + "/usr/local", tag, os.path.join(cls.folder, into))
        return os.path.join(cls.folder, into, os.listdir(os.path.join(cls.folder, into))[0])

    @classmethod
    def run_command(cls, *command, status=0):
        done = subprocess.run(command, cwd=cls.folder, env=cls.environment, text=True, capture_output=True,
                              timeout=600 if WHEEL else 120)  # an emulated processor is slow
        print((done.stdout + done.stderr)[-2000:])
        assert status in (None, done.returncode), (command, done.returncode)
        return done.stdout + done.stderr

    @classmethod
    def bin(cls, name):
        return os.path.join(cls.venv, "bin", name)

    def write(self, name, text):
        path = os.path.join(self.folder, name)
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)
        return path

    def test_a_job_runs_and_its_workers_have_the_package(self):
        code = "import ddprun, os; ddprun.step(1); print('connected', ddprun.connected(), os.environ['RANK'])"
        for command in ([self.bin("ddprun")], [self.bin("python"), "-m", "ddprun"]):
            said = self.run_command(*command, "--standalone", "--nproc_per_node=2", "--no-python", self.bin("python"), "-c", code)
            self.assertIn("connected True 0", said)
            self.assertIn("connected True 1", said)

    @unittest.skipUnless(importlib.util.find_spec("torch"), "no PyTorch (scripts/setup.sh full)")
    def test_pytorch_finds_the_backend(self):
        code = ("import torch, torch.distributed as dist; dist.init_process_group('ddprun'); tensor = torch.ones(1);"
                "dist.all_reduce(tensor); print('sum', tensor.item())")
        said = self.run_command("env", "PYTHONPATH=" + sysconfig.get_path("purelib"), self.bin("ddprun"), "--standalone",
                                "--nproc_per_node=2", "--no-python", self.bin("python"), "-c", code)
        self.assertEqual(said.count("sum 2.0"), 2, said)

    def test_a_worker_that_fails_comes_back_and_two_nodes_meet(self):
        self.write("twice.py", "import os, sys\nprint('size', os.environ['WORLD_SIZE'])\n"
                               "sys.exit(os.environ['TORCHELASTIC_RESTART_COUNT'] == '0')\n")
        command = [self.bin("ddprun"), "--nnodes=2", "--nproc_per_node=1", "--max_restarts=1", "--rdzv_id=j",
                   "--rdzv_endpoint=127.0.0.1:%d" % free_port(), "twice.py"]
        nodes = [subprocess.Popen(command, cwd=self.folder, env=self.environment, text=True, stdout=subprocess.PIPE,
                                  stderr=subprocess.STDOUT) for _ in range(2)]
        for node in nodes:
            said = node.communicate(timeout=600)[0]
            print(said)
            self.assertEqual(node.returncode, 0)
            self.assertIn("size 2", said)

    def test_readme_s_first_lines(self):
        if WHEEL:
            self.skipTest("a stand-in for GPUs comes with a build")
        self.write("train.py", "import os\nprint('rank', os.environ['RANK'], 'of', os.environ['WORLD_SIZE'])\n")
        gpus = ["DDPRUN_NVML_LIBRARY=" + os.path.join(BIN, "libddprun_fake_nvml.so"), "FAKE_NVML_LIST=" + self.write("list", ""),
                "FAKE_NVML_STATE=" + self.write("state", "")]
        said = self.run_command("env", *self.path, *gpus, *self.first_job.split())
        self.assertIn("rank 0 of 2", said)
        self.assertIn("rank 1 of 2", said)

    def test_a_job_s_ddprun_and_warden_take_little_memory(self):
        code = ("import os, sys; sys.path.insert(0, %r); import family; used = family.use();"
                "print('resident', used['ddprun']['kB'] + used['warden']['kB'], os.readlink('/proc/%%d/exe' %% os.getppid()))"
                % os.path.join(SOURCE, "tests/support"))
        said = self.run_command(self.bin("ddprun"), "--standalone", "--nproc_per_node=1", "--no-python", self.bin("python"), "-c", code)
        used, warden = re.search(r"resident (\d+) (.*)", said).groups()
        if "qemu" in warden:
            self.skipTest("an emulated program's memory is the emulator's")
        self.assertLess(int(used), 8000 if WHEEL else 9000)  # kB; this build's ddprun loads the machine's OpenSSL

    def test_each_program_has_its_name(self):
        for name in ("ddprun", "ddprund", "ddprunctl", "ddprun-agent"):
            self.assertRegex(self.run_command(self.bin(name), "--version"), f"(?m)^{name} ")
        daemon = subprocess.Popen([self.bin("ddprund"), "--listen=127.0.0.1:0"], env=self.environment,
                                  stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        self.addCleanup(daemon.communicate)
        self.addCleanup(daemon.terminate)
        self.assertIn("127.0.0.1", daemon.stdout.readline())
        with open(f"/proc/{daemon.pid}/comm", encoding="ascii") as comm:  # the name for pgrep and ps
            self.assertEqual(comm.read(), "ddprund\n")

    def test_native_stacks_where_the_machine_has_libdw(self):
        stacks = next(name for name in files.below(self.venv) if name.endswith("/ddprun-stacks"))
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        read, write = os.pipe()
        sleeper = subprocess.Popen(["sleep", "600"])
        helper = subprocess.Popen([os.path.join(self.venv, stacks)], stdin=theirs)
        try:
            socket.send_fds(ours, [struct.pack("i", sleeper.pid)], [write])
            os.close(write)
            with open(read, encoding="utf-8") as answer:
                said = answer.read()
        finally:
            for process in (helper, sleeper):
                process.kill()
                process.wait()
            ours.close()
            theirs.close()
        print(said)
        self.assertIn(f"pid {sleeper.pid}\n", said)
        has_libdw = subprocess.run([sys.executable, "-c", "import ctypes; ctypes.CDLL('libdw.so.1')"], stderr=subprocess.DEVNULL)
        self.assertRegex(said, "native .*nanosleep" if has_libdw.returncode == 0 else "note no native stack: libdw is not installed")

    def test_tls_the_status_page_and_doctor(self):
        self.run_command(self.bin("ddprunctl"), "make-certs", "certs", "127.0.0.1")
        port = free_port()
        daemon = subprocess.Popen([self.bin("ddprund"), "--listen=127.0.0.1:%d" % port, "--tls-cert=certs/server.pem",
                                   "--tls-key=certs/server.key"], cwd=self.folder, env=self.environment,
                                  stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        self.addCleanup(daemon.communicate)
        self.addCleanup(daemon.terminate)
        self.assertIn("127.0.0.1", daemon.stdout.readline())  # it listens
        self.assertIn('"findings"', self.run_command(self.bin("ddprunctl"), "doctor", "--json", status=None))
        context = ssl.create_default_context(cafile=os.path.join(self.folder, "certs/ca.pem"))
        with urllib.request.urlopen("https://127.0.0.1:%d/" % port, context=context, timeout=30) as page:
            self.assertIn(b"<title>ddprun", page.read())
        there = ["--rdzv_endpoint=127.0.0.1:%d" % port, "--rdzv_conf=is_host=0", "--tls-ca=certs/ca.pem"]
        said = self.run_command(self.bin("ddprun"), *there, "--nproc_per_node=2", "sh", "-c", "echo worker $RANK", status=None)
        if WHEEL and "sock_diag(7)" in said:
            self.skipTest("the job alone: qemu-user has no sock_diag(7)")
        self.assertIn("worker 1", said)

    def test_the_whole_package_all_helpers_and_all_pages_are_installed(self):
        package = "lib/python%d.%d/site-packages/" % sys.version_info[:2]
        wanted = {package + name for name in files.below(os.path.join(SOURCE, "python")) if "__pycache__" not in name}
        wanted |= {"share/doc/ddprun/docs/" + name for name in files.below(os.path.join(SOURCE, "docs"))}
        wanted |= {"share/doc/ddprun/" + name for name in ("README.md", "CHANGELOG.md", "configs/systemd/ddprund.service",
                                                           "configs/kubernetes/ddprund.yaml")}
        wanted |= {"libexec/ddprun/" + name for name in HELPERS} | {"share/man/" + name for name in PAGES}
        digits = files.below(os.path.join(SOURCE, "data/digits"))
        self.assertTrue(digits)
        wanted |= {package + "ddprun/examples/data/" + name for name in digits}
        self.assertGreater(len(wanted), 100)
        self.assertEqual(wanted - files.below(self.venv), set())
        with open(os.path.join(self.venv, "share/doc/ddprun/configs/systemd/ddprund.service"), encoding="utf-8") as unit:
            self.assertRegex(unit.read(), r"\nExecStart=/usr/(local/)?bin/ddprund ")

    def test_pip_refuses_the_wheel_on_other_platforms(self):
        machine = os.uname().machine
        offered = os.path.join(self.folder, "offered")
        os.makedirs(offered)
        name = "-".join(os.path.basename(self.wheel).split("-")[:4])
        shutil.copy(self.wheel, os.path.join(offered, "%s-manylinux2014_%s.manylinux_2_17_%s.whl" % (name, machine, machine)))
        for platform, status in (("manylinux_2_17_" + machine, 0), ("manylinux_2_12_" + machine, 1), ("musllinux_1_2_" + machine, 1),
                                 ("macosx_14_0_arm64", 1), ("win_amd64", 1)):
            said = self.run_command(self.bin("pip"), "download", "--quiet", "--no-index", "--find-links", offered, "--dest", self.folder,
                                    "--only-binary", ":all:", "--platform", platform, "ddprun", status=status)
            self.assertEqual("ERROR: No matching distribution found for ddprun" in said, status == 1, said)

    def test_pip_says_in_a_line_why_it_can_not_compile_the_source(self):
        call = "import os, sys; sys.path.insert(0, %r); import pack_wheel; %%s; pack_wheel.build_wheel('nowhere')" % os.path.dirname(PACK)
        nothing = os.path.join(self.folder, "nothing")
        os.makedirs(nothing)
        for fake, said in (("sys.platform = 'darwin'", "ddprun runs on Linux with glibc alone: there is no wheel for this platform"),
                           ("os.confstr = lambda name: None", "ddprun runs on Linux with glibc alone"),  # musl
                           ("os.environ['PATH'] = %r" % nothing, "ddprun can't be compiled here without cmake, ninja, g++; ")):
            problem = self.run_command(sys.executable, "-B", "-c", call % fake, status=1)
            self.assertIn(said, problem)
            self.assertEqual(problem.count("\n"), 1, problem)

    def test_launch_needs_no_path(self):
        self.write("launch.py", "import ddprun\n\ndef f(x):\n    return x * 2\n\n"
                                "if __name__ == '__main__':\n    print(ddprun.launch(f, 21, nproc_per_node=2))\n")
        self.assertIn("[42, 42]", self.run_command(self.bin("python"), "launch.py"))

    def test_it_is_small(self):
        self.assertLessEqual(os.path.getsize(self.wheel), 12e6)

    def test_compat_is_installed_where_it_is_asked_for_alone(self):
        code = "import sys; print('ddprun.compat' in sys.modules)"
        self.assertIn("False", self.run_command(self.bin("python"), "-c", code))
        self.assertIn("True", self.run_command("env", "DDPRUN_COMPAT=1", self.bin("python"), "-c", code))

    def test_the_same_files_make_the_same_bytes(self):
        if WHEEL:
            self.skipTest("it was packed elsewhere")
        contents = []
        for name in (self.wheel, self.pack("again")):
            with open(name, "rb") as file:
                contents.append(file.read())
        self.assertEqual(*contents)

    def test_zz_its_removal_leaves_nothing(self):
        self.run_command(self.bin("pip"), "uninstall", "--quiet", "--yes", "ddprun")
        left = {name for name in files.below(self.venv) - self.before if "__pycache__" not in name}
        self.assertEqual(left, set())


if __name__ == "__main__":
    runner.main()
