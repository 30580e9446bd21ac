# SPDX-License-Identifier: Apache-2.0
"""Boots a real systemd as the first process of new name spaces, on this kernel, like a machine of its own. Its file
system is a throw-away copy of this machine's. It has only a loopback. Only units run that a test has started."""
import os
import shutil
import subprocess
import tempfile
import time

import cgroup

SYSTEMD = "/lib/systemd/systemd"
PATH = "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin"
SECONDS = 60

# $1: a folder of the test's, $2: the programs' folder. The script's cgroup becomes the new machine's root cgroup.
BOOT = r"""set -e
mount --make-rprivate /
mount -t tmpfs none "$1"
root=$1/root
mkdir "$1/upper" "$1/work" "$root"
mount -t overlay overlay -o "lowerdir=/,upperdir=$1/upper,workdir=$1/work" "$root"
mount -t proc proc "$root/proc"
mount -t sysfs sysfs "$root/sys"
mount -t cgroup2 cgroup2 "$root/sys/fs/cgroup"
for each in run tmp dev; do mount -t tmpfs -o mode=755 none "$root/$each"; done
chmod 1777 "$root/tmp"
mkdir "$root/dev/pts" "$root/dev/shm"
mount -t devpts devpts -o newinstance,ptmxmode=0666 "$root/dev/pts"
mount -t tmpfs -o mode=1777 none "$root/dev/shm"
for each in null zero full random urandom tty; do
  touch "$root/dev/$each"
  mount --bind "/dev/$each" "$root/dev/$each"
done
ln -s pts/ptmx "$root/dev/ptmx"
ln -s /proc/self/fd "$root/dev/fd"
mkdir -p "$root/usr/local/bin"
cp "$2"/ddprun* "$root/usr/local/bin"
# What this machine would mount, start and keep is its own affair.
rm -rf "$root/etc/fstab" "$root/etc/systemd/system" "$root/var/log/journal"
mkdir -p "$root/etc/systemd/system"
ip link set lo up
cd "$root"
mkdir old
pivot_root . old
umount -l /old
mount --make-rshared /
exec env -i container=test PATH=$PATH $SYSTEMD --system --unit=basic.target --log-target=null --show-status=no
""".replace("$SYSTEMD", SYSTEMD).replace("$PATH", PATH)


def _cgroup2():
    """Returns the mount point of cgroup version 2; None: it isn't mounted."""
    with open("/proc/self/mountinfo", encoding="ascii") as table:
        for line in table:
            left, right = line.split(" - ")
            if right.split()[0] == "cgroup2" and left.split()[3] == "/":
                return left.split()[4]
    return None


class Booted:
    """A booted machine. It ends with the class `cls`, a unittest.TestCase. Skips the class if none can be booted."""

    def __init__(self, cls, programs):
        if not os.access(SYSTEMD, os.X_OK):
            cls.skipTest(cls, "systemd is missing")
        self._folder = tempfile.mkdtemp(prefix="ddprun-booted-")
        cls.addClassCleanup(shutil.rmtree, self._folder)
        parent = _cgroup2()
        self._cgroup = os.path.join(parent or "/", os.path.basename(self._folder))
        try:
            if not parent:
                raise OSError("no cgroup of version 2 is mounted")
            os.mkdir(self._cgroup)
        except OSError as error:
            cls.skipTest(cls, f"no cgroup for it: {error}")
        cls.addClassCleanup(cgroup.remove, self._cgroup)
        self._said = tempfile.TemporaryFile("w+")
        self._outer = subprocess.Popen(
            ["unshare", "--pid", "--fork", "--kill-child", "--mount", "--net", "--uts", "--ipc", "--cgroup",
             "sh", "-c", BOOT, "sh", self._folder, programs],
            stdin=subprocess.DEVNULL, stdout=self._said, stderr=subprocess.STDOUT, preexec_fn=self._enter_cgroup)
        cls.addClassCleanup(self._end)
        self._wait_for(cls)

    def _enter_cgroup(self):
        with open(os.path.join(self._cgroup, "cgroup.procs"), "w", encoding="ascii") as procs:
            procs.write(str(os.getpid()))

    def _wait_for(self, cls):
        deadline = time.monotonic() + SECONDS
        while True:
            if self._outer.poll() is not None:
                self._said.seek(0)
                cls.skipTest(cls, f"no systemd in name spaces of its own: {self._said.read().strip()}")
            first = self._first_process()
            # systemd makes this socket once it takes orders.
            if first and os.path.exists(f"/proc/{first}/root/run/systemd/private"):
                break
            if time.monotonic() > deadline:
                raise AssertionError(f"systemd was not there within {SECONDS} s")
            time.sleep(0.01)  # no event outside the machine tells of the socket
        self._inside = ["nsenter", f"--target={first}", "--all", "env", "-i", f"PATH={PATH}"]
        state = self.run("systemctl", "is-system-running", "--wait")
        if state.stdout.strip() not in ("running", "degraded"):
            raise AssertionError(f"systemd is {state.stdout.strip()}")

    def _first_process(self):
        with open(f"/proc/{self._outer.pid}/task/{self._outer.pid}/children", encoding="ascii") as children:
            found = children.read().split()
        if not found:
            return None
        with open(f"/proc/{found[0]}/comm", encoding="ascii") as name:
            return found[0] if name.read().strip() == "systemd" else None

    def _end(self):
        self._outer.kill()
        self._outer.wait()
        self._said.close()

    def command(self, *argv):
        """Returns `argv` as a command that runs on the machine, as root."""
        return [*self._inside, *argv]

    def run(self, *argv, timeout=SECONDS):
        return subprocess.run(self.command(*argv), text=True, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, timeout=timeout)

    def write(self, path, text, owner="root", mode="644"):
        """Makes a file on the machine, and the folders above it. All belong to `owner`."""
        script = ('mkdir -p "$(dirname "$1")" && cat >"$1" && chmod "$3" "$1" && chown "$2" "$1" "$(dirname "$1")"')
        subprocess.run(self.command("sh", "-c", script, "sh", path, owner, mode), input=text, text=True, check=True,
                       timeout=SECONDS)
