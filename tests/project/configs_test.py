#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tests that the files of configs/ work: ddprun reads the TOML file, the units verify, the batch script runs."""
import json
import os
import re
import shutil
import subprocess
import sys
import unittest

HERE = os.path.dirname(os.path.abspath(__file__))
SOURCE = os.environ.get("DDPRUN_SOURCE_DIR", os.path.join(HERE, "../.."))
BIN = os.environ.get("DDPRUN_BIN_DIR", os.path.join(SOURCE, "build/release/bin"))
CONFIGS = os.path.join(SOURCE, "configs")
sys.path.insert(0, os.path.join(SOURCE, "tests/support"))
import etcd  # noqa: E402
import netns  # noqa: E402
import runner  # noqa: E402
import files  # noqa: E402


def environment(**more):
    dropped = ("DDPRUN_RDZV", "PET_", "SLURM_", "MASTER_", "RANK", "WORLD_SIZE")
    base = {k: v for k, v in os.environ.items() if not k.startswith(dropped)}
    return {**base, "PATH": BIN + ":" + base.get("PATH", ""), **more}


def read(name):
    with open(os.path.join(CONFIGS, name), encoding="utf-8") as f:
        return f.read()


class Scratch(unittest.TestCase):
    def setUp(self):
        self.directory = files.scratch(self)

    def write(self, name, text, mode=0o644):
        return files.write(self.directory, name, text, mode)


class TomlFile(Scratch):
    """Uncomments each key that the file explains, and runs a job with it."""

    def setUp(self):
        super().setUp()
        try:
            self.hosts = netns.Hosts(2)
        except netns.Unavailable as reason:
            self.skipTest(str(reason))
        self.addCleanup(self.hosts.close)

    def run_with(self, *texts, said="", **more):
        """Runs a job with one text for both hosts, or one for each."""
        argv = [os.path.join(BIN, "ddprun"), "--nnodes=2", "--nproc_per_node=1", "--no-python",
                "sh", "-c", f"echo rank $RANK of $WORLD_SIZE on $(hostname){said}"]
        running = []
        for host, text in zip(self.hosts, texts * 2):
            self.write(f"{host.name}/ddprun/ddprun.toml", text)
            home = os.path.join(self.directory, host.name)
            running.append(host.popen(argv, env=environment(XDG_CONFIG_HOME=home, **more), text=True,
                                      stdout=subprocess.PIPE, stderr=subprocess.STDOUT))
        outputs = [p.communicate(timeout=60)[0] for p in running]
        return [p.returncode for p in running], "".join(outputs)

    def with_key(self, key, text):
        text, count = re.subn(rf"^#({key} = .*)$", r"\1", text, flags=re.M)
        self.assertEqual(count, 1, f"ddprun.toml has no line '#{key} = …'")
        return text

    def check_key(self, key, host_names):
        text = self.with_key(key, read("ddprun.toml"))
        for name, host in host_names.items():
            text = text.replace(name, self.hosts[host].address)
        codes, output = self.run_with(text)
        self.assertEqual(codes, [0, 0], output)
        for rank in range(2):
            self.assertIn(f"rank {rank} of 2", output)

    def test_the_shipped_file_is_valid_and_sets_nothing(self):
        codes, output = self.run_with(read("ddprun.toml"))
        self.assertEqual(codes, [2, 2], output)
        self.assertIn("--rdzv-endpoint", output)

    def test_rdzv_endpoint(self):
        self.check_key("rdzv_endpoint", {"rendezvous.example.com": 1})

    def test_hosts(self):
        self.check_key("hosts", {"node0": 0, "node1": 1})

    def test_topology(self):
        text = self.with_key("hosts", read("ddprun.toml"))
        for host in self.hosts:
            text = text.replace(host.name, host.address)
        first = self.with_key("topology", text)
        self.assertIn('"pod1.', first)
        codes, output = self.run_with(first.replace('"pod1.', '"pod2.'), first)
        self.assertEqual(codes, [0, 0], output)
        self.assertIn("rank 0 of 2 on node1", output)

    def test_preflight(self):
        text = self.with_key("hosts", read("ddprun.toml"))
        for host in self.hosts:
            text = text.replace(host.name, host.address)
        text, count = re.subn("/usr/local/sbin/node-health --quick", "test -d /proc; echo healthy",
                              self.with_key("preflight", text))
        self.assertEqual(count, 1)
        codes, output = self.run_with(text)
        self.assertEqual(codes, [0, 0], output)
        self.assertEqual(output.count("healthy"), 2, output)
        codes, output = self.run_with(text.replace("test -d /proc; echo healthy", "false"))
        self.assertEqual(codes, [75, 75], output)

    def test_token_file(self):
        text = self.with_key("hosts", read("ddprun.toml"))
        for host in self.hosts:
            text = text.replace(host.name, host.address)
        path = os.path.join(self.directory, "token")
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT, 0o600), "w") as file:
            file.write("a token for this test\n")
        codes, output = self.run_with(self.with_key("token_file", text).replace("/etc/ddprun/token", path))
        self.assertEqual(codes, [0, 0], output)
        os.chmod(path, 0o644)
        codes, output = self.run_with(self.with_key("token_file", text).replace("/etc/ddprun/token", path))
        self.assertEqual(codes, [2, 2], output)

    def test_tls_files(self):
        text = self.with_key("hosts", read("ddprun.toml"))
        for host in self.hosts:
            text = text.replace(host.name, host.address)
        certs = os.path.join(self.directory, "certs")
        subprocess.run([os.path.join(BIN, "ddprunctl"), "make-certs", certs, self.hosts[0].address],
                       check=True, capture_output=True, timeout=60)
        for key, shipped, made in (("tls_ca", "/etc/ddprun/ca.pem", "ca.pem"),
                                   ("tls_cert", "/etc/ddprun/node.pem", "server.pem"),
                                   ("tls_key", "/etc/ddprun/node.key", "server.key")):
            text = self.with_key(key, text).replace(shipped, os.path.join(certs, made))
        codes, output = self.run_with(text)
        self.assertEqual(codes, [0, 0], output)
        codes, output = self.run_with(text.replace(os.path.join(certs, "ca.pem"), "/nowhere/ca.pem"))
        self.assertEqual(codes, [2, 2], output)

    def test_store(self):
        text = self.with_key("hosts", read("ddprun.toml"))
        for host in self.hosts:
            text = text.replace(host.name, host.address)
        codes, output = self.run_with(self.with_key("store", text), said=", store at $MASTER_ADDR")
        self.assertEqual(codes, [0, 0], output)
        self.assertEqual(output.count("store at 127.0.0.1"), 2, output)

    def test_metrics(self):
        text = self.with_key("hosts", read("ddprun.toml"))
        for host in self.hosts:
            text = text.replace(host.name, host.address)
        text = self.with_key("metrics", text)
        codes, output = self.run_with(text)
        self.assertEqual(codes, [0, 0], output)
        codes, output = self.run_with(text.replace("127.0.0.1:9410", "192.0.2.1:9410"))
        self.assertEqual(codes, [2, 2], output)
        self.assertEqual(output.count("--metrics=192.0.2.1:9410"), 2, output)

    def test_standing_agents(self):
        text = self.with_key("standing_agents", self.with_key("rdzv_endpoint", read("ddprun.toml")))
        self.write("ddprun/ddprun.toml", text.replace("rendezvous.example.com", "127.0.0.1"))
        done = subprocess.run([os.path.join(BIN, "ddprun"), "--nnodes=2", "--dry-run", "train"], text=True, timeout=20,
                              env=environment(XDG_CONFIG_HOME=self.directory), capture_output=True)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn('"min_nodes":2', done.stdout)

    def test_options_by_their_names(self):
        text = self.with_key("hang_action", self.with_key("max_restarts", read("ddprun.toml")))
        self.write("ddprun/ddprun.toml", text)
        env = environment(XDG_CONFIG_HOME=self.directory)
        ddprun = os.path.join(BIN, "ddprun")
        shown = subprocess.run([ddprun, "--show-config"], env=env, text=True, capture_output=True, timeout=20)
        self.assertRegex(shown.stdout, r"(?m)^max_restarts = 3 +# .*ddprun/ddprun.toml:\d+$")
        self.assertRegex(shown.stdout, r'(?m)^hang_action = "report" +# .*ddprun/ddprun.toml:\d+$')
        ran = subprocess.run([ddprun, "sh", "-c", "echo $TORCHELASTIC_MAX_RESTARTS"], env=env, text=True,
                             capture_output=True, timeout=20)
        self.assertEqual(ran.stdout, "3\n", ran.stderr)

    def test_every_key_is_covered(self):
        self.assertEqual(re.findall(r"^#(\w+) = ", read("ddprun.toml"), flags=re.M),
                         ["max_restarts", "hang_action", "rdzv_endpoint", "hosts", "standing_agents", "token_file", "store",
                          "tls_ca", "tls_cert", "tls_key", "topology", "preflight", "metrics"])


class SystemdUnit(Scratch):
    def unit_with_our_binary(self):
        binary = os.path.join(BIN, "ddprund")
        self.assertTrue(os.path.exists(binary), f"no {binary}: build it first")
        text, count = re.subn(r"/usr/local/bin/ddprund\b(?= --listen)", binary, read("systemd/ddprund.service"))
        self.assertEqual(count, 1)
        self.write("ddprund.socket", read("systemd/ddprund.socket"))
        return self.write("ddprund.service", text)

    def test_verifies(self):
        if not shutil.which("systemd-analyze"):
            self.skipTest("systemd-analyze is missing")
        unit = self.unit_with_our_binary()
        agent, count = re.subn(r"/usr/local/bin/(ddprun-agent)\b(?= --slots)", os.path.join(BIN, r"\1"),
                               read("systemd/ddprun-agent@.service"))
        self.assertEqual(count, 1)
        for each in (unit, unit.replace(".service", ".socket"), self.write("ddprun-agent@alice.service", agent)):
            done = subprocess.run(["systemd-analyze", "verify", "--man=no", each], timeout=60,
                                  text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
            self.assertEqual(done.returncode, 0, done.stdout)
            self.assertNotRegex(done.stdout, r"(ddprund|ddprun-agent@alice)\.(service|socket):")

    def test_units_ask_for_what_the_page_says(self):
        """Units without these lines also verify. Only jobs would miss them: no cgroups for workers, no memory for RDMA,
        no watchdog. A client could fill the machine's memory."""
        for name, wanted in (
                ("ddprund.service", {"Type": "notify", "WatchdogSec": "30s", "DynamicUser": "yes",
                                     "ExecReload": "/bin/kill -HUP $MAINPID", "LimitNOFILE": "1048576",
                                     "StateDirectory": "ddprun", "MemoryMax": "50%"}),
                ("ddprun-agent@.service", {"Type": "notify", "WatchdogSec": "30s", "User": "%i", "Delegate": "yes",
                                           "ExecReload": "/bin/kill -HUP $MAINPID", "LimitMEMLOCK": "infinity",
                                           "LimitNOFILE": "1048576", "TasksMax": "infinity",
                                           "KillMode": "mixed", "OOMPolicy": "continue"})):
            lines = re.findall(r"^(\w+)=(.*)$", read(f"systemd/{name}"), re.M)
            self.assertEqual({key: value for key, value in lines if key in wanted}, wanted, name)

    def test_exposure_is_low(self):
        if not shutil.which("systemd-analyze"):
            self.skipTest("systemd-analyze is missing")
        done = subprocess.run(["systemd-analyze", "security", "--offline=true", "--threshold=20",
                               self.unit_with_our_binary()], timeout=60, text=True,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        self.assertEqual(done.returncode, 0, done.stdout)

    def test_its_command_line_starts_the_daemon(self):
        words = re.search(r"^ExecStart=\S+ (.*)$", read("systemd/ddprund.service"), re.M)[1]
        arguments = words.replace("${DDPRUND_LISTEN}", "127.0.0.1:0").replace("${STATE_DIRECTORY}", self.directory).split()
        daemon = subprocess.Popen([os.path.join(BIN, "ddprund"), *arguments], env=environment(),
                                  stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        line = daemon.stdout.readline()
        daemon.terminate()
        rest = daemon.communicate(timeout=20)[0]
        self.assertRegex(line, r"127\.0\.0\.1:\d+", rest)


class KubernetesManifest(Scratch):
    """Runs the commands of the containers, each in a network namespace like a Pod's."""

    def setUp(self):
        super().setUp()
        if etcd.MISSING:
            self.skipTest(etcd.MISSING)
        try:
            self.hosts = netns.Hosts(3)
        except netns.Unavailable as reason:
            self.skipTest(str(reason))
        self.addCleanup(self.hosts.close)

    def by_address(self, text):
        for index, host in enumerate(self.hosts):
            text = text.replace(f"ddprund-etcd-{index}.ddprund-etcd", host.address)
            text = text.replace(f"ddprund-{index}.ddprund:", f"{host.address}:")
        return text

    def begin(self, command, pod, host):
        """Starts `command` of the pod with that name."""
        words = [self.by_address(word.replace("$(POD)", pod)).replace("/data/", f"{self.directory}/{pod}/")
                 for word in command]
        process = host.popen(words, env=environment(), stdin=subprocess.DEVNULL,
                             stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        self.addCleanup(process.wait)
        self.addCleanup(process.kill)

    def test_its_commands_are_a_group_of_which_one_leads_and_that_runs_jobs(self):
        text = read("kubernetes/ddprund.yaml")
        of_etcd, of_ddprund = (json.loads(found) for found in re.findall(r"command: (\[.*?\])\n", text, re.S))
        replicas = [int(found) for found in re.findall(r"replicas: (\d+)", text)]
        for command, name, number in ((of_etcd, "ddprund-etcd", replicas[0]), (of_ddprund, "ddprund", replicas[1])):
            for index in range(number):
                os.mkdir(os.path.join(self.directory, f"{name}-{index}"))
                self.begin(command, f"{name}-{index}", self.hosts[index])
        endpoints = self.by_address(re.search(r"--rdzv-endpoint=(\S+?)\.?\n", text)[1])

        def run(*argv):
            done = self.hosts[2].run([os.path.join(BIN, argv[0]), *argv[1:]], env=environment(), text=True, timeout=90,
                                     stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
            self.assertEqual(done.returncode, 0, done.stdout)
            return done.stdout
        run("ddprun", f"--rdzv-endpoint={endpoints}", "--nnodes=1", "--rendezvous-timeout=60", "--no-python", "true")
        roles = [json.loads(run("ddprunctl", "status", "--json", f"--rdzv-endpoint={each}"))["role"]
                 for each in endpoints.split(",")]
        self.assertEqual(sorted(roles), ["leader", "standby"])


class SlurmScript(Scratch):
    """Runs the script with an `srun` that works like Slurm's: the command on each node of the step, with the step's
    variables."""

    SRUN = """#!{python}
import os, subprocess, sys
sys.path.insert(0, {support!r})
import netns
argv = sys.argv[1:]
while argv[0].startswith("--"):
    argv.pop(0)
with netns.Hosts(2) as hosts:
    step = dict(SLURM_STEP_ID="0", SLURM_STEP_NODELIST="node[0-1]", SLURM_STEP_NUM_NODES="2",
                SLURM_STEP_NUM_TASKS="2", SLURM_STEP_TASKS_PER_NODE="1(x2)", SLURM_NTASKS="2",
                SLURM_LOCALID="0")
    running = [h.popen(argv, env={{**os.environ, **step, "SLURM_NODEID": str(h.index),
                                   "SLURM_PROCID": str(h.index)}}) for h in hosts]
    sys.exit(max(p.wait() for p in running))
"""
    TRAIN = "#!/bin/sh\necho \"rank $RANK of $WORLD_SIZE got $*\"\n"

    def test_parses(self):
        subprocess.run(["bash", "-n", os.path.join(CONFIGS, "train.sbatch")], check=True, timeout=10)
        options = re.findall(r"^#SBATCH (--[a-z-]+)=", read("train.sbatch"), re.M)
        self.assertEqual(len(options), len(set(options)))

    def test_its_srun_line_runs_the_job_on_all_nodes(self):
        try:
            netns.Hosts(1).close()
        except netns.Unavailable as reason:
            self.skipTest(str(reason))
        support = os.path.join(SOURCE, "tests/support")
        self.write("bin/srun", self.SRUN.format(python=sys.executable, support=support), 0o755)
        self.write("bin/train", self.TRAIN, 0o755)
        batch = environment(SLURM_JOB_ID="4711", SLURM_JOB_NUM_NODES="2", SLURM_JOB_NODELIST="node[0-1]",
                            SLURM_JOB_NAME="train", XDG_CONFIG_HOME="/nonexistent")
        # A fake `train` comes first in PATH, because the test is about the launch, not about the training.
        batch["PATH"] = os.path.join(self.directory, "bin") + ":" + batch["PATH"]
        done = subprocess.run(["bash", os.path.join(CONFIGS, "train.sbatch"), "--epochs=1"], timeout=90,
                              env=batch, cwd=os.path.join(self.directory, "bin"), text=True,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        self.assertEqual(done.returncode, 0, done.stdout)
        for rank in range(8):
            self.assertIn(f"rank {rank} of 8 got --checkpoint-dir=checkpoints-4711 --epochs=1", done.stdout)


if __name__ == "__main__":
    runner.main()
