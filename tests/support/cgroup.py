# SPDX-License-Identifier: Apache-2.0
"""Makes a memory cgroup with a limit, version 1 or 2, inside the test's own cgroup. It needs root, or a delegated
cgroup."""
import os
import time


def _own():
    """Returns (directory of this process' memory cgroup, whether it is version 2); (None, …): there is none."""
    with open("/proc/self/cgroup") as f:
        lines = [line.rstrip("\n").split(":", 2) for line in f]
    v1 = [path for _, controllers, path in lines if "memory" in controllers.split(",")]
    path = (v1 or [path for number, _, path in lines if number == "0"] or [None])[0]
    with open("/proc/self/mountinfo") as f:
        for line in f:
            left, right = line.split(" - ")
            root, point = left.split()[3:5]
            kind, _, options = right.split()[:3]
            fits = "memory" in options.split(",") if v1 else kind == "cgroup2"
            if path and fits and kind.startswith("cgroup") and (root == "/" or path.startswith(root)):
                return os.path.normpath(point + "/" + path[len(root) if root != "/" else 0:]), not v1
    return None, not v1


def remove(directory):
    """Removes the cgroup and those below it, once the killed processes in them have gone."""
    deadline = time.monotonic() + 20
    while os.path.isdir(directory):
        for path, _, _ in os.walk(directory, topdown=False):
            try:
                os.rmdir(path)
            except OSError:  # a process in it is still ending; no event tells when it has gone
                if time.monotonic() > deadline:
                    raise
        time.sleep(0.01)


class MemoryCgroup:
    """`directory` is the cgroup with the limit. `inner` is a cgroup in it, without a limit of its own."""

    def __init__(self, directory, is_v2, limit_bytes):
        self.directory, self.inner = directory, os.path.join(directory, "inner")
        os.mkdir(directory)
        try:
            if is_v2:
                self._write("memory.max", limit_bytes)
                self._write("memory.swap.max", 0, may_fail=True)
                self._write("cgroup.subtree_control", "+memory")
            else:
                self._write("memory.use_hierarchy", 1, may_fail=True)
                self._write("memory.limit_in_bytes", limit_bytes)
                self._write("memory.memsw.limit_in_bytes", limit_bytes, may_fail=True)
            os.mkdir(self.inner)
        except OSError:
            self.close()
            raise

    def _write(self, name, value, may_fail=False):
        try:
            with open(os.path.join(self.directory, name), "w") as f:
                f.write(str(value))
        except OSError:
            if not may_fail:
                raise

    def enter(self):
        """Moves the calling process into `inner`. For preexec_fn."""
        with open(os.path.join(self.inner, "cgroup.procs"), "w") as f:
            f.write(str(os.getpid()))

    def close(self):
        remove(self.directory)


def memory_cgroup_or_skip(case, limit_bytes):
    """Makes a MemoryCgroup, which is removed at the end of `case`, a unittest.TestCase."""
    own, is_v2 = _own()
    why = "no memory cgroup is mounted"
    # Version 2 gives a controller only to children of a cgroup without processes.
    while own and os.path.isdir(own) and os.path.exists(os.path.join(own, "cgroup.procs")):
        try:
            made = MemoryCgroup(os.path.join(own, f"ddprun-test-{os.getpid()}"), is_v2, limit_bytes)
            case.addCleanup(made.close)
            return made
        except OSError as error:
            why = f"{error.strerror} in {own}"
        own = os.path.dirname(own)
    return case.skipTest(f"no memory cgroup can be made here: {why}")
