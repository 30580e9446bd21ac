#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The commands and the program in README.md work as printed. A `<!-- test: NAME -->` line before a
fenced block says which case below runs it; every block has one. Usage: readme_test.py commands|program
"""
import json
import os
import re
import shlex
import subprocess
import sys
import tempfile
import unittest

HERE = os.path.dirname(os.path.abspath(__file__))
SOURCE = os.environ.get("DDPRUN_SOURCE_DIR", os.path.abspath(os.path.join(HERE, "../..")))
BIN = os.environ.get("DDPRUN_BIN_DIR", os.path.join(SOURCE, "build/release/bin"))
sys.path[:0] = [os.path.join(SOURCE, "tests/support"), os.path.join(SOURCE, "tests/apps/train")]
import digits  # noqa: E402
import netns  # noqa: E402
import runner  # noqa: E402
import sshd  # noqa: E402


def blocks():
    """Returns name → the text of the fenced block; blocks without a name are under None."""
    with open(os.path.join(SOURCE, "README.md"), encoding="utf-8") as f:
        text = f.read()
    found = {}
    for name, body in re.findall(r"(?:<!-- test: ([^>]*?) -->\n)?```\w+\n(.*?)```", text, re.S):
        found.setdefault(name or None, body)
    return found


def shape(line):
    """Returns the line without its numbers and the clone's folder, which differ from run to run."""
    return re.sub(r"\d[\d.]*", "N", " ".join(line.replace(SOURCE + "/", "").split()))


def environment(**more):
    dropped = ("DDPRUN_RDZV", "PET_", "SLURM_", "MASTER_", "RANK", "WORLD_SIZE")
    base = {k: v for k, v in os.environ.items() if not k.startswith(dropped)}
    return {**base, "PATH": BIN + ":" + base.get("PATH", ""), "XDG_CONFIG_HOME": "/nonexistent", **more}


def skip_without_train():
    if not os.path.exists(os.path.join(BIN, "train")):
        raise unittest.SkipTest("train was not built: configured without LibTorch")


def few():
    """Returns flags for a short training, because these commands only show that the ranks meet."""
    return "--epochs=1", *digits.few(8)


class Commands(unittest.TestCase):
    def command(self, name, count=1):
        lines = blocks()[name].strip().splitlines()
        self.assertEqual(len(lines), count, f"README.md's block '{name}'")
        return shlex.split(lines[0])

    def run_here(self, argv, timeout=300):
        done = subprocess.run(argv, cwd=SOURCE, env=environment(), timeout=timeout, text=True,
                              stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT)
        self.assertEqual(done.returncode, 0, done.stdout)
        return done.stdout

    def on_two_hosts(self, argv, **more):
        try:
            hosts = netns.Hosts(2)
        except netns.Unavailable as reason:
            self.skipTest(str(reason))
        with hosts:
            running = [h.popen(argv, cwd=SOURCE, env=environment(**more), text=True,
                               stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                               stderr=subprocess.STDOUT) for h in hosts]
            outputs = [p.communicate(timeout=200)[0] for p in running]
        self.assertEqual([p.returncode for p in running], [0, 0], "\n--\n".join(outputs))

    def test_every_block_is_tested(self):
        """wheel_test.py runs the block named pip."""
        self.assertNotIn(None, blocks(), "a fenced block of README.md has no <!-- test: … --> line")
        self.assertEqual(set(blocks()), {"pip", "demo", "demo's end", "run", "is what runs the tests", "two nodes",
                                         "two nodes configured", "hosts", "daemon", "compiles", "builds"})

    def test_demo(self):
        skip_without_train()
        if os.path.realpath(BIN) != os.path.realpath(os.path.join(SOURCE, "build/release/bin")):
            self.skipTest("scripts/demo.sh builds in build/release, which is not what is tested here")
        output = self.run_here([*self.command("demo"), "--epochs=1"], timeout=500)
        said = {shape(line) for line in output.splitlines()}
        for line in blocks()["demo's end"].splitlines():
            self.assertIn(shape(line), said)

    def test_run(self):
        skip_without_train()
        argv = self.command("run")
        self.assertEqual(argv[0], "build/release/bin/ddprun")
        with tempfile.TemporaryDirectory() as directory:
            result = os.path.join(directory, "result.json")
            self.run_here([os.path.join(BIN, "ddprun"), *argv[1:], "--json", result])
            with open(result) as f:
                self.assertGreater(json.load(f)["test_accuracy"], 0.8)

    def test_the_test_script_exists(self):
        argv = self.command("is what runs the tests")
        self.assertIn("release", self.run_here([*argv, "--list"]).split())

    def test_two_nodes(self):
        skip_without_train()
        self.on_two_hosts([*self.command("two nodes"), *few()])

    def test_two_nodes_configured(self):
        skip_without_train()
        self.on_two_hosts([*self.command("two nodes configured"), *few()],
                          DDPRUN_RDZV_ENDPOINT="node0:29400")

    def test_hosts(self):
        """One of the two hosts is the local one. The other one's sshd listens on ssh's usual port."""
        skip_without_train()
        try:
            hosts, keys = netns.Hosts(2), sshd.Keys()
        except (netns.Unavailable, sshd.Unavailable) as reason:
            self.skipTest(str(reason))
        with hosts, keys, sshd.Server(keys, hosts[1].address, 22, host=hosts[1]):
            done = hosts[0].run([*self.command("hosts"), *few()], cwd=SOURCE, timeout=200, text=True,
                                env=environment(DDPRUN_SSH=" ".join(keys.ssh_words())),
                                stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        self.assertEqual(done.returncode, 0, done.stdout)

    def test_daemon(self):
        try:
            hosts = netns.Hosts(1)
        except netns.Unavailable as reason:
            self.skipTest(str(reason))
        with hosts:
            folder = self.enterContext(tempfile.TemporaryDirectory())
            token = os.path.join(folder, "token")
            subprocess.run(f"umask 077; openssl rand -hex 32 > {token}", shell=True, check=True)
            daemon = hosts[0].popen(self.command("daemon"), env=environment(), text=True, cwd=folder,
                                    stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
            self.assertIn("29400", daemon.stdout.readline())
            job = ["ddprun", "--nnodes=2", "--rdzv-id=job", "--rdzv-endpoint=localhost:29400", f"--token-file={token}",
                   "true"]
            peer = hosts[0].popen(job, env=environment())
            self.assertEqual(hosts[0].run(job, env=environment(), timeout=60).returncode, 0)
            self.assertEqual(peer.wait(timeout=60), 0)
            daemon.terminate()
            daemon.communicate(timeout=20)


class Program(unittest.TestCase):
    def test_the_training_loop_is_built_as_told_and_runs(self):
        """Builds in a folder of its own, with the libraries of the tested build."""
        self.assertLessEqual(len([line for line in blocks()["compiles"].splitlines() if line.strip()]), 22)
        build = os.path.realpath(os.path.join(BIN, ".."))
        libraries = [name for name in ("core", "ddp", "torch")
                     if os.path.exists(f"{build}/worker_sdk/{name}/libddprun_{name}.a")]
        if len(libraries) < 3 or not os.path.exists(f"{build}/build.ninja"):
            self.skipTest("no Ninja build of the SDK with LibTorch beside the binaries")
        configure, run = blocks()["builds"].strip().splitlines()
        option = next(word for word in shlex.split(configure) if word.startswith("-DDDPRUN_PROGRAM="))
        with tempfile.TemporaryDirectory() as directory:
            with open(os.path.join(directory, "loop.cc"), "w") as f:
                f.write(blocks()["compiles"])

            def checked(argv, **more):
                done = subprocess.run(argv, cwd=directory, timeout=250, text=True, stdout=subprocess.PIPE,
                                      stderr=subprocess.STDOUT, **more)
                self.assertEqual(done.returncode, 0, done.stdout)
                return done.stdout

            checked(["cmake", "-S", SOURCE, "-B", ".", "-G", "Ninja", "-DDDPRUN_BUILD_TESTS=OFF",
                     "-DDDPRUN_BUILD_BENCH=OFF", "-DCMAKE_CXX_FLAGS_RELEASE=-O0", option])
            compile_it, link_it = [line for line in checked(["ninja", "-t", "commands", "loop"]).splitlines()
                                   if "loop.cc.o" in line]
            for library in set(re.findall(r"[\w/]+/libddprun_\w+\.a", link_it)):
                os.makedirs(os.path.dirname(os.path.join(directory, library)), exist_ok=True)
                os.symlink(os.path.join(build, library), os.path.join(directory, library))
            os.makedirs(os.path.join(directory, "bin"), exist_ok=True)
            os.makedirs(os.path.join(directory, "CMakeFiles/loop.dir"), exist_ok=True)
            for command in (compile_it, link_it):
                checked(["sh", "-c", command])
            argv = shlex.split(run)
            self.assertEqual(argv[0], "build/release/bin/ddprun")
            output = checked([os.path.join(BIN, "ddprun"), *argv[1:-1], os.path.join(directory, "bin", argv[-1])],
                             env=environment())
        for rank in (0, 1):
            self.assertRegex(output, rf"rank {rank}: loss \d\.\d\d")


if __name__ == "__main__":
    cases = {"commands": Commands, "program": Program}
    if sys.argv[1:2] and sys.argv[1] in cases:
        name = cases[sys.argv.pop(1)].__name__
        sys.argv.insert(1, name)
    runner.main()
