# SPDX-License-Identifier: Apache-2.0
"""A real Slurm: slurmctld and one slurmd on each of several hosts of netns.py.

scripts/setup.sh full unpacks Debian's Slurm into .cache/slurm, without installing it. A Slurm in the system's own
folders is used if there is one. Needs root (slurmd starts as root).
"""
import os
import shutil
import subprocess
import time

HERE = os.path.dirname(os.path.abspath(__file__))
SOURCE = os.environ.get("DDPRUN_SOURCE_DIR", os.path.abspath(os.path.join(HERE, "../..")))
BIN = os.environ.get("DDPRUN_BIN_DIR", os.path.join(SOURCE, "build/release/bin"))

UNPACKED = os.path.join(SOURCE, ".cache/slurm")
CONFIGURATION = """ClusterName=test
SlurmctldHost=node0
AuthType=auth/none
AuthInfo=cred_expire=5
CredType=cred/none
PluginDir={plugins}
SlurmUser=root
SlurmdUser=root
StateSaveLocation={directory}/state
SlurmdSpoolDir={directory}/%n
SlurmctldPidFile={directory}/slurmctld.pid
SlurmdPidFile={directory}/%n.pid
SlurmctldLogFile={directory}/slurmctld.log
SlurmdLogFile={directory}/%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
MpiDefault=none
JobAcctGatherType=jobacct_gather/none
SchedulerParameters=batch_sched_delay=0,sched_min_interval=0,sched_interval=1,bf_interval=1
SlurmdParameters=config_overrides
NodeName={nodes} CPUs=4 State=UNKNOWN
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""


class Slurm:
    """One controller, and a node on each host. All their files are in `directory`."""

    def __init__(self, hosts, directory):
        self.hosts, self.directory = hosts, directory
        root = UNPACKED if os.path.isdir(UNPACKED) else "/"
        libraries = os.path.join(root, "usr/lib/x86_64-linux-gnu")
        plugins = os.path.join(libraries, "slurm-wlm")
        self._sbin, self._bin = os.path.join(root, "usr/sbin"), os.path.join(root, "usr/bin")
        for name in ("state", *self._names()):
            os.mkdir(os.path.join(directory, name))
        with open(os.path.join(directory, "slurm.conf"), "w") as f:
            f.write(CONFIGURATION.format(plugins=plugins, directory=directory, nodes=",".join(self._names())))
        own = {k: v for k, v in os.environ.items()
               if not k.startswith(("SLURM_", "DDPRUN_RDZV", "PET_", "MASTER_", "RANK", "WORLD_SIZE"))}
        self.environment = {**own, "SLURM_CONF": os.path.join(directory, "slurm.conf"),
                            "LD_LIBRARY_PATH": f"{libraries}:{plugins}",
                            "PATH": f"{self._bin}:{BIN}:{own.get('PATH', '')}"}
        self._controller = self._start(hosts[0], [self._program("slurmctld"), "-D"])
        for host in hosts:
            self._start(host, [self._program("slurmd"), "-D", "-N", host.name,
                               "-d", self._program("slurmstepd")])

    def _names(self):
        return [host.name for host in self.hosts]

    def _program(self, name):
        return os.path.join(self._sbin, name + "-wlm")

    def _start(self, host, argv):
        return host.popen(argv, cwd=self.directory, env=self.environment, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                   stderr=subprocess.DEVNULL)

    def user_program(self, name):
        return os.path.join(self._bin, name)

    def run(self, *argv, timeout=60, cwd=None, **kwargs):
        """Runs a command in `cwd`, else in Slurm's directory. A job writes slurm-N.out in the directory from which it
        was submitted."""
        return self.hosts[0].run([self.user_program(argv[0]), *argv[1:]], cwd or self.directory, timeout=timeout,
                                 env=self.environment, text=True, stdout=subprocess.PIPE,
                                 stderr=subprocess.STDOUT, **kwargs)

    def wait_until_idle(self, seconds=20):
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            if self.run("sinfo", "--noheader", "--format=%T %D").stdout.strip() == f"idle {len(self.hosts)}":
                return True
            time.sleep(0.1)
        return False

    def forget_jobs(self, seconds=20):
        """Ends the controller, and starts it again without its state."""
        self._controller.terminate()
        self._controller.wait(timeout=seconds)
        self._controller = self._start(self.hosts[0], [self._program("slurmctld"), "-D", "-c"])
        deadline = time.monotonic() + seconds
        while self.run("scontrol", "ping").returncode != 0 and time.monotonic() < deadline:
            time.sleep(0.1)

    def logs(self):
        text = ""
        for name in ("slurmctld.log", *(f"{name}.log" for name in self._names())):
            path = os.path.join(self.directory, name)
            if os.path.exists(path):
                with open(path, errors="replace") as f:
                    text += f"-- {name}\n" + "".join(f.readlines()[-15:])
        return text


def why_not():
    if os.geteuid() != 0:
        return "slurmd starts as root only"
    if not os.path.isdir(UNPACKED) and not os.path.exists("/usr/sbin/slurmctld-wlm"):
        return "no Slurm here: scripts/setup.sh full unpacks it"
    if not shutil.which("ip"):
        return "the program 'ip' is missing"
    return None
