#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Several "hosts" on one machine: network namespaces joined by a bridge.

Each host has an address of its own (10.77.0.1, 10.77.0.2, …) on `eth0`, its own loopback, host name (node0, node1,
…), /etc/hosts and /dev/shm; files are shared. The bridge lives in a namespace of its own, too. So no names are
global, and any number of tests may do this at once.

    with netns.Hosts(2) as hosts:                      # raises Unavailable(reason)
        master = hosts[0].popen(["ddprun", …])
        hosts[1].run(["ddprun", …], timeout=30)
        hosts[1].cut()                                 # silence: the cable is out
        hosts[1].kill()                                # power loss: SIGKILL for all that runs there

    with netns.Hosts(2, faulty_cables=True) as hosts:  # delay, loss, one-way silence: cable.py

Nothing outlives the test, and it leaves no files. A process holds each host and reads a pipe of ours. When the pipe
ends, even because we are killed, this process kills everything in its namespace.

From a shell or a C++ test: `netns.py [--hosts N] -- COMMAND…` runs the command on every host at once.
DDPRUN_TEST_HOST (0, 1, …) and DDPRUN_TEST_HOSTS (all addresses) are set, and `{host}`, `{addr0}`, `{addr1}`… are
replaced in the command's words. The exit status is the first that is not 0. Without the permission
to make namespaces the script prints "SKIPPED: reason" and exits with 77.
"""
import argparse
import ctypes
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time

import cable
import skips

NETWORK = "10.77.0"
INTERFACE = "eth0"
LOOPBACK_6 = "0" * 24 + "01000000"  # ::1 in the form of /proc/net/tcp6


class Unavailable(Exception):
    """Network namespaces can't be made here. The text says why."""


def _net_namespace(pid):
    try:
        return os.stat(f"/proc/{pid}/ns/net").st_ino
    except OSError:
        return None


def _pids_in(namespace):
    return [int(p) for p in os.listdir("/proc") if p.isdigit() and _net_namespace(p) == namespace]


def _kill_all(namespace, spare=()):
    """Kills again until no process is left, because one may fork after the list was read."""
    deadline = time.monotonic() + 5
    while time.monotonic() < deadline:
        victims = [p for p in _pids_in(namespace) if p not in spare and not _is_zombie(p)]
        if not victims:
            return
        for pid in victims:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
        time.sleep(0.005)


def _is_zombie(pid):
    try:
        with open(f"/proc/{pid}/stat") as f:
            return f.read().rsplit(")", 1)[1].split()[0] == "Z"
    except OSError:
        return True


def _hold(hosts_text, name):
    """Runs inside a new namespace. It sets the namespace up, says "ready", and stays until its input ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    run = lambda *argv: subprocess.run(argv, check=True, stdin=subprocess.DEVNULL)
    run("ip", "link", "set", "lo", "up")
    if name:
        ctypes.CDLL(None, use_errno=True).sethostname(name.encode(), len(name))
        run("mount", "-t", "tmpfs", "-o", "mode=1777", "shm", "/dev/shm")
        with tempfile.NamedTemporaryFile("w", prefix="ddprun-hosts-") as hosts_file:  # the mount keeps the file alive
            hosts_file.write(hosts_text)
            hosts_file.flush()
            os.chmod(hosts_file.name, 0o644)
            run("mount", "--bind", hosts_file.name, "/etc/hosts")
        # Mounts a new /sys, so that /sys/class/net shows this namespace's devices instead of the machine's. The
        # cgroups stay the same.
        cgroups = os.open("/sys/fs/cgroup", os.O_PATH) if os.path.isdir("/sys/fs/cgroup") else None
        new_sys = subprocess.run(["mount", "-t", "sysfs", "sysfs", "/sys"], stderr=subprocess.DEVNULL)
        if cgroups is not None and new_sys.returncode == 0:
            bind_all_below = 0x5000  # MS_BIND | MS_REC; mount(8) would use the link's text
            ctypes.CDLL(None).mount(f"/proc/self/fd/{cgroups}".encode(), b"/sys/fs/cgroup", None,
                                    bind_all_below, None)
    print("ready", flush=True)
    sys.stdin.buffer.read()
    _kill_all(_net_namespace("self"), spare=(os.getpid(),))


class _Holder:
    """One set of namespaces (network, mounts, host name), alive as long as this object."""

    def __init__(self, enter, hosts_text="", name=""):
        # A user namespace gives an ordinary user the right to make the others.
        user = ["--user", "--map-root-user"] if os.geteuid() != 0 and not enter else []
        self._user = ["-U", "--preserve-credentials"] if os.geteuid() != 0 else []
        argv = enter + ["unshare", *user, "--net", "--mount", "--uts", "--propagation", "private",
                        sys.executable, os.path.abspath(__file__), "--hold", hosts_text, name]
        self._process = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                         stderr=subprocess.PIPE, text=True, start_new_session=True)
        if self._process.stdout.readline() != "ready\n":
            self._process.stdin.close()
            why = self._process.stderr.read().strip().splitlines()
            self._process.wait()
            raise Unavailable("no network namespaces here: " + (why[-1] if why else "unshare failed"))
        self.pid = self._process.pid
        self.namespace = _net_namespace(self.pid)

    def enter(self):
        """Returns the words before a command that make it run in these namespaces. Signals reach the command."""
        return ["nsenter", f"--target={self.pid}", *self._user, "--net", "--mount", "--uts", "--"]

    def run(self, *argv):
        done = subprocess.run(self.enter() + list(argv), stdin=subprocess.DEVNULL, text=True,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        if done.returncode != 0:
            raise Unavailable(f"{' '.join(argv)}: {done.stdout.strip()}")

    def close(self):
        self._process.stdin.close()
        self._process.wait()
        self._process.stdout.close()
        self._process.stderr.close()


class Host:
    """A host of Hosts. Its peers and its programs see `address`, `name` and `interface`.

    `cable`: a cable.Cable with faulty_cables, else None.
    """

    def __init__(self, holder, switch, index, faulty_cable):
        self.index = index
        self.name = f"node{index}"
        self.address = f"{NETWORK}.{index + 1}"
        self.interface = INTERFACE
        self._holder = holder
        self._switch = switch
        self._port = f"port{index}"
        self._started = []
        self.cable = None
        if faulty_cable:
            try:
                self.cable = cable.Cable(switch.enter(), self._port, holder.pid, INTERFACE)
            except RuntimeError as error:
                raise Unavailable(f"no TAP devices here: {error}") from None
        else:
            switch.run("ip", "link", "add", self._port, "type", "veth",
                       "peer", "name", INTERFACE, "netns", str(holder.pid))
        switch.run("ip", "link", "set", self._port, "master", "bridge", "up")
        holder.run("ip", "address", "add", f"{self.address}/24", "dev", INTERFACE)
        holder.run("ip", "link", "set", INTERFACE, "up")

    def command(self, argv, cwd=None):
        """Returns `argv` as a command that runs on this host, for a caller that spawns it in its own way."""
        # Entering a mount namespace leads to its root directory.
        return self._holder.enter() + ["env", f"--chdir={cwd or os.getcwd()}", *argv]

    def popen(self, argv, cwd=None, **kwargs):
        """subprocess.Popen on this host. Its pid is the command's own."""
        self._started.append(subprocess.Popen(self.command(argv, cwd), **kwargs))
        return self._started[-1]

    def run(self, argv, cwd=None, **kwargs):
        """subprocess.run on this host; give it a timeout."""
        return subprocess.run(self.command(argv, cwd), **kwargs)

    def pids(self):
        """Returns the pids of all processes on this host."""
        return [p for p in _pids_in(self._holder.namespace) if p != self._holder.pid]

    def listening(self, beyond_loopback=False):
        """Returns the TCP ports with a listener here; `beyond_loopback`: only those that other hosts can reach."""
        ports = set()
        for table in ("tcp", "tcp6"):
            with open(f"/proc/{self._holder.pid}/net/{table}") as f:
                for words in (line.split() for line in f.readlines()[1:]):
                    address, port = words[1].rsplit(":", 1)
                    local = address.endswith("7F") if table == "tcp" else address == LOOPBACK_6
                    if words[3] == "0A" and not (beyond_loopback and local):
                        ports.add(int(port, 16))
        return ports

    def shared_memory(self):
        """Returns the files in this host's /dev/shm."""
        return sorted(os.listdir(f"/proc/{self._holder.pid}/root/dev/shm"))

    def kill(self):
        """Acts like a power loss: every process on this host gets SIGKILL. Returns once they are gone."""
        for process in self._started:  # a process may not have entered the namespace yet
            if process.poll() is None:
                process.kill()
        _kill_all(self._holder.namespace, spare=(self._holder.pid,))
        for process in self._started:
            process.wait()

    def enter_switch(self, *argv):
        """Returns `argv` as a command that runs at the other end of this host's cable, which is `port`."""
        return self._switch.enter() + list(argv)

    @property
    def port(self):
        return self._port

    def unplug(self):
        """Removes the cable."""
        if self.cable:
            self.cable.close()

    def cut(self):
        """Pulls the cable: packets vanish without an error, as on a lost network."""
        self._switch.run("ip", "link", "set", self._port, "down")

    def mend(self):
        """Undoes cut()."""
        self._switch.run("ip", "link", "set", self._port, "up")


class Hosts(list):
    """`count` hosts that reach each other; a context manager and a list of Host.

    own_name_is_loopback: each host's /etc/hosts maps its own name to 127.0.1.1, as Debian's
    installer writes it; otherwise to its address. The others' names are always their addresses.
    faulty_cables: each host has a `cable` that can delay and lose.
    """

    def __init__(self, count=2, own_name_is_loopback=False, faulty_cables=False):
        super().__init__()
        for tool in ("ip", "unshare", "nsenter", "mount"):
            if not shutil.which(tool):
                raise Unavailable(f"the program '{tool}' is missing")
        self._holders = []
        try:
            switch = self._hold([])
            switch.run("ip", "link", "add", "bridge", "type", "bridge", "forward_delay", "0")
            switch.run("ip", "link", "set", "bridge", "up")
            # Without root, the hosts' namespaces are made inside the switch's user namespace.
            inside = [] if os.geteuid() == 0 else switch.enter()
            for index in range(count):
                text = self._hosts_text(index, count, own_name_is_loopback)
                self.append(Host(self._hold(inside, text, f"node{index}"), switch, index,
                                 faulty_cables))
        except BaseException:
            self.close()
            raise

    def _hold(self, *args):
        holder = _Holder(*args)
        self._holders.append(holder)
        return holder

    @staticmethod
    def _hosts_text(index, count, own_name_is_loopback):
        lines = ["127.0.0.1 localhost"]
        for peer in range(count):
            loopback = own_name_is_loopback and peer == index
            lines.append(f"{'127.0.1.1' if loopback else f'{NETWORK}.{peer + 1}'} node{peer}")
        return "\n".join(lines) + "\n"

    def close(self):
        """Ends all processes on the hosts, and the hosts."""
        for host in self:
            host.kill()
            host.unplug()
        for holder in reversed(self._holders):
            holder.close()
        self._holders = []

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()


def hosts_or_skip(count=2, **kwargs):
    """Hosts(…). If they can't be made, it ends this test with "SKIPPED: reason"."""
    try:
        return Hosts(count, **kwargs)
    except Unavailable as error:
        skips.skip_all(error)


def _run_everywhere(count, words):
    with hosts_or_skip(count) as hosts:
        fields = {f"{{addr{h.index}}}": h.address for h in hosts}
        everyone = " ".join(h.address for h in hosts)
        running = []
        for host in hosts:
            argv = list(words)
            for field, value in {**fields, "{host}": str(host.index)}.items():
                argv = [word.replace(field, value) for word in argv]
            env = {**os.environ, "DDPRUN_TEST_HOST": str(host.index), "DDPRUN_TEST_HOSTS": everyone}
            running.append(host.popen(argv, env=env))
        codes = [process.wait() for process in running]
    failed = [code for code in codes if code != 0]
    return (failed[0] if failed[0] > 0 else 128 - failed[0]) if failed else 0


def main():
    if sys.argv[1:2] == ["--hold"]:
        return _hold(sys.argv[2], sys.argv[3])
    parser = argparse.ArgumentParser(description="Run a command on several hosts at once.")
    parser.add_argument("--hosts", type=int, default=2)
    parser.add_argument("command", nargs=argparse.REMAINDER)
    args = parser.parse_args()
    words = args.command[1:] if args.command[:1] == ["--"] else args.command
    if not words:
        parser.error("no command given")
    return _run_everywhere(args.hosts, words)


if __name__ == "__main__":
    sys.exit(main())
