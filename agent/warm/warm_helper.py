# SPDX-License-Identifier: Apache-2.0
# A node's warm helper (docs/warm.md): imports modules once, then forks workers that have them already.
# ddprun starts it as `python FLAGS -c THIS JSON`, with a SOCK_SEQPACKET as descriptor 3. JSON has "modules"; "path",
# the sys.path[0] of the workers; "auto", whether the helper learns from the workers what they import (notes.py). It also has
# "program" and "cache", the folder that keeps this list; "has_list", whether descriptor 4 is ddprun's file for it; and
# "most_bytes" of memory. Each message is one JSON object. The helper sends {"ready": N} or {"cold": WHY}, its last message.
# ddprun orders {"program", "arguments", "workers"}, with the socket of a new warden and its cgroup, if any. The answer is
# {"warden": PID}, or {"cold": WHY}. The helper's {"found": N} asks for the order {"import": true}, unless N is 0. ddprun
# sends no other order before this one's {"ready": N}. Without "hurry" the helper imports slowly, until the order
# {"hurry": true} comes.
#
# A copy of this process forks the workers, then becomes the warden. So the workers are the warden's own children.
# When a round has begun, the helper makes such copies for the next one.
import sys

HAS_FIRST_PATH = not (sys.flags.isolated or getattr(sys.flags, "safe_path", False))
if HAS_FIRST_PATH:
    del sys.path[0]  # the working directory, in which another user may have put a module

import _thread
import array
import builtins
import contextlib
import ctypes
import fcntl
import gc
import hashlib
import importlib.machinery
import importlib.util
import json
import mmap
import os
import resource
import select
import signal
import socket
import stat
import struct
import sysconfig
import time


class AsItWas:
    """Keeps a module's functions as they are now, because a user's module may replace them later."""

    def __init__(self, module):
        self.__dict__.update(vars(module))


array, contextlib, ctypes, fcntl, gc, json, mmap, os, resource, select, signal, socket, stat, struct, time = map(
    AsItWas, (array, contextlib, ctypes, fcntl, gc, json, mmap, os, resource, select, signal, socket, stat, struct, time))
open = open  # pylint: disable=redefined-builtin,self-assigning-variable

AGENT, FIRST_WORKER = 3, 5  # the warden's descriptors; 4 is its cgroup. Here 3 is the socket to the agent
REQUEST = struct.Struct("=IIIiIIQQ16Qqq")  # the Request of agent/warden/protocol.h
SPAWN_ERROR = struct.Struct("=iI")
AT_DIRECTORY, AT_EXEC, AT_CPUS, AT_CGROUP, FRESH = 2, 3, 5, 6, 7  # protocol.h's Stage
OTHER_CPUS, OTHER_PYTHON_VARIABLES, OTHER_VARIABLES, NO_SOURCE = 1, 2, 3, 4  # protocol.h's Fresh
MOST_BYTES_KEPT = 1 << 20  # the largest list of modules that is read, in bytes
PDEATHSIG, SET_NAME, SET_PTRACER, SET_MM, SET_MM_ARG_END = 1, 15, 0x59616D61, 35, 9  # prctl(2)
libc = ctypes.CDLL(None, use_errno=True)
agent_pid, helper_pid = os.getppid(), os.getpid()


# ---- The helper. ----


def import_one(name):
    try:
        importlib.import_module(name)
    finally:
        if os.getpid() != helper_pid:
            os._exit(0)  # a child that the module forked; it must not answer ddprun


def check_memory(name, most_bytes):
    """Looks at this process' own memory. The kernel can drop that of files."""
    with open("/proc/self/statm", encoding="ascii") as file:
        _, resident, of_files, *_ = map(int, file.read().split())
    own = (resident - of_files) * resource.getpagesize()
    if own > most_bytes:
        raise Cold(f"with {name} the imports have {own >> 20} MiB of memory, they may have {most_bytes >> 20}")


class Pace:
    """How fast the helper imports. Without `in_a_hurry` it works a third of the time, since workers train."""

    def __init__(self, agent, in_a_hurry):
        self.agent = agent
        self.in_a_hurry = in_a_hurry

    def rest(self, begun):
        """Waits after work that has `begun` then, until an order comes: a round waits."""
        if not self.in_a_hurry:
            orders, _, _ = select.select([self.agent], [], [], 2 * (time.monotonic() - begun))
            self.in_a_hurry = bool(orders)


def import_all(names, most_bytes, pace):
    for name in names:
        begun = time.monotonic()
        try:
            import_one(name)
        except BaseException as error:  # also SystemExit
            words = str(error).split("\n")[0][:300]
            raise Cold(f"{name} can't be imported: {type(error).__name__}{': ' + words if words else ''}") from None
        check_memory(name, most_bytes)
        pace.rest(begun)


def import_what_is_there(names, most_bytes, pace):
    """Imports `names`, except those that fail."""
    for name in names:
        if name in UNSAFE:
            raise Cold(f"the workers import {name}: {UNSAFE[name]}")
    for name in names:
        begun = time.monotonic()
        with contextlib.suppress(BaseException):  # also SystemExit
            import_one(name)
        check_memory(name, most_bytes)
        pace.rest(begun)


def write_out():
    """Flushes the output streams. Otherwise each worker would write their buffered text once more."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(AttributeError, OSError, ValueError):  # a module has replaced or closed it
            stream.flush()
    libc.fflush(None)


def answer(agent, **what):
    agent.send(json.dumps(what).encode())


def receive(sock, size):
    """Returns (bytes, descriptors). The descriptors are closed at an exec."""
    numbers = array.array("i")
    data, parts, _, _ = sock.recvmsg(size, socket.CMSG_SPACE(16 * numbers.itemsize), socket.MSG_CMSG_CLOEXEC)
    for level, kind, content in parts:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            numbers.frombytes(content[:len(content) - len(content) % numbers.itemsize])
    return data, list(numbers)


def lives(pid):
    try:
        os.kill(pid, 0)
        return True
    except OSError:
        return False


UNDISTURBED_SECONDS = 1  # copies for the next round are made after so many seconds without an order


class Helper:
    """The state of this process, also of its forked copies."""

    def __init__(self, agent):
        self.agent = agent
        self.options = json.loads(sys.argv[1])
        self.began_with = dict(os.environ)
        self.is_allowed = set()  # the descriptors before the imports
        self.files = {}          # module_files() after the imports
        self.changed = {}        # environment variables that an import has changed
        self.copies = None       # the Copies for the next round
        self.num_workers = 0     # the workers in the last round
        self.warden = 0          # the pid of that round's warden
        self.folder = os.getcwd()
        if sys.implementation.name != "cpython" or not hasattr(os, "pidfd_open"):
            raise Cold("it needs CPython 3.9 or later")
        if HAS_FIRST_PATH:
            sys.path.insert(0, self.options["path"])
        self.notes = Notes(self.options) if self.options["auto"] else None
        self.names = self.notes.load() if self.notes else []
        self.is_noted = self.notes is None  # whether the workers have nothing more to tell
        self.is_asking = False              # whether it waits for the order to import
        self.look_at = 0.0                  # the time of the next look at what the workers have noted
        self.watch = None                   # in a worker: its Watch, if it has one

    def load(self):
        """Imports the modules and tells ddprun. Raises Cold."""
        self.drop_copies()
        shared = shared_memory()  # it has the notes'
        most_bytes = self.options["most_bytes"]
        pace = Pace(self.agent, not self.files and self.options["hurry"])
        import_all(self.options["modules"], most_bytes, pace)
        try:
            import_what_is_there(self.names, most_bytes, pace)
            check(self.is_allowed, None)
            check_shared(shared)
            begun = time.monotonic()
            self.files = module_files()
            if time.monotonic() - begun > MOST_SECONDS:
                raise Cold(f"it takes {time.monotonic() - begun:.1f} s to look at the files of its {len(self.files)} modules")
        except Cold:
            if self.names:
                self.notes.forget()
            raise
        write_out()
        self.changed = {name: os.environ.get(name) for name in {*self.began_with, *os.environ}
                        if self.began_with.get(name) != os.environ.get(name)}
        gc.collect()
        gc.freeze()  # later collections skip these objects, and so don't write to pages that workers share
        show_as([f"ddprun-warm: {len(sys.modules)} modules"])
        answer(self.agent, ready=len(sys.modules), of=len(self.options["modules"]) + len(self.names))

    def serve(self):
        """Serves orders. Returns only in a worker: arguments, source, and the descriptor to close when it runs."""
        self.is_allowed = set(descriptors())
        self.load()
        while True:
            may_look = not self.is_noted and not self.is_asking
            may_copy = self.num_workers > 0 and self.copies is None and (self.notes is None or bool(self.names))
            waits = [UNDISTURBED_SECONDS] if may_copy else []
            if may_look and self.num_workers > 0:
                waits.append(max(0, self.look_at - time.monotonic()))
            ready, _, _ = select.select([self.agent, self.notes.reader] if may_look else [self.agent], [], [],
                                        min(waits, default=None))
            if self.agent not in ready:
                if ready:
                    self.is_noted = self.notes.hear() == STEP
                if ready or may_look and time.monotonic() >= self.look_at:
                    self.look(they_work=bool(ready) or lives(self.warden))
                elif may_copy:
                    check(self.is_allowed, None)
                    worker = self.copy([])
                    if worker is not None:
                        return self.become(worker)
                continue
            data, numbers = receive(self.agent, 1 << 16)
            if not data:
                os._exit(0)
            order = json.loads(data)
            if "import" in order:
                self.load()
                self.is_asking = False
                continue
            if "hurry" in order:  # it came while the helper imported
                continue
            check({*self.is_allowed, *numbers}, self.copies)
            if have_changed(self.files):
                raise Cold("the file of an imported module has changed")
            worker = self.start_warden(data, order["workers"], numbers)
            if worker is not None:
                return self.become(worker)
            for number in numbers:
                os.close(number)
            if not self.is_noted and not self.is_asking:
                self.look(they_work=False)  # at the notes of a round that was ended early

    def look(self, they_work):
        """Takes what the workers have noted, and asks for the order to import what is new. `they_work`: the next job is to
        import it, too."""
        self.look_at = time.monotonic() + LOOK_SECONDS
        have = {*self.names, *sys.modules}
        new = [name for name in self.notes.take() if name not in have]
        if new:
            self.names += new
            self.notes.remember(self.names)
        problem = self.notes.keep(self.names) if they_work else ""
        if new or problem:
            self.is_asking = bool(new)
            answer(self.agent, found=len(new), problem=problem)

    def copy(self, numbers):
        """Forks the Copies. Returns None; in a worker its socket."""
        self.copies = Copies(self.num_workers, self.agent, numbers)
        return self.copies.worker

    def drop_copies(self):
        if self.copies is not None:
            self.copies.end()
        self.copies = None

    def start_warden(self, order, num_workers, numbers):
        """Starts the warden and tells ddprun its pid. Returns None; in a worker its socket."""
        if self.num_workers != num_workers:
            self.drop_copies()
        self.num_workers = num_workers
        if self.notes and not self.is_noted:
            self.notes.make_room(num_workers)
        copies, self.copies = self.copies, None
        pid = copies.begin(order, numbers) if copies else None
        if pid is None:
            worker = self.copy(numbers)
            if worker is not None:
                return worker
            copies, self.copies = self.copies, None
            pid = copies.begin(order, numbers)
        if pid is None:
            raise Cold("no further processes could be started")
        self.warden = pid
        answer(self.agent, warden=pid)
        return None

    def become(self, warden):
        """Turns a forked copy into a worker. Returns as serve() does."""
        if self.notes:
            self.notes.reader.close()
            if self.notes.has_list:
                os.close(LIST)
            if self.is_noted:
                self.notes.writer.close()
            else:
                self.watch = Watch(self.notes)
        os.chdir(self.folder)  # a module may have changed the directory
        worker = become(warden, self.began_with, self.changed)
        if self.watch:
            self.watch.begin()
        return worker

    def ended(self, in_order):
        """Called in a worker whose program has ended."""
        if self.watch and in_order:
            self.watch.tell(END)
        elif self.watch:
            self.watch.look(at_once=True)


class Copies:
    """Copies of this process that wait: one to become a warden, its children to become workers. So they are forked
    before their round begins. `worker` is None; in a worker it is the worker's socket."""

    def __init__(self, num_workers, agent, numbers):
        self.num_workers = num_workers
        self.worker = None
        self.orders, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        wait, self.go = os.pipe()
        try:
            self.between = os.fork()
        except OSError:
            self.between = None
        if self.between == 0:
            for number in (agent.detach(), self.orders.detach(), self.go, *numbers):
                os.close(number)
            show_as(["ddprun-warm: waits"])
            self.worker = copy_further(num_workers, there, wait)
            return
        there.close()
        os.close(wait)

    def begin(self, order, numbers):
        """Starts the warden, which becomes the agent's child, and returns its pid; None: the copies have failed.
        Called once."""
        try:
            self.orders.sendmsg([order], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", numbers))])
            os.write(self.go, b"x")
            told, failed = self.orders.recv(4), self.orders.recv(4)  # the second is empty if the warden runs
        except OSError:
            told = failed = b""
        self.end()
        if failed:
            raise Cold(f"the warden could not be started: {os.strerror(*struct.unpack('=i', failed))}")
        return struct.unpack("=i", told)[0] if len(told) == 4 else None

    def end(self):
        self.orders.close()
        os.close(self.go)
        if self.between is not None:
            os.waitpid(self.between, 0)

    def descriptors(self):
        return {self.orders.fileno(), self.go}


def copy_further(num_workers, orders, wait):
    """Runs in a process between helper and warden. This process ends when the warden begins, or has ended."""
    here = os.getpid()
    try:
        warden = os.fork()
    except OSError:
        os._exit(1)
    if warden == 0:
        os.close(wait)
        return become_warden(num_workers, orders, here)
    orders.close()
    if not os.read(wait, 1):
        os.waitpid(warden, 0)
    os._exit(0)


def become_warden(num_workers, orders, between):
    ends, pids = [], []
    try:
        here_pid = os.getpid()
        os.setsid()
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        for _ in range(num_workers):
            here, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            pid = os.fork()
            if pid == 0:
                libc.prctl(PDEATHSIG, signal.SIGKILL, 0, 0, 0)
                if os.getppid() != here_pid:
                    os._exit(127)  # the parent died before the line above
                for number in (*ends, here.detach(), orders.detach()):
                    os.close(number)
                return there
            there.close()
            ends.append(here.detach())
            pids.append(pid)
        data, numbers = receive(orders, 1 << 16)
        order = json.loads(data)
        while os.getppid() == between:  # until this process is the agent's child
            with contextlib.suppress(ProcessLookupError):
                select.select([os.pidfd_open(between)], [], [])
        orders.send(struct.pack("=i", here_pid))  # all workers are forked
        null = os.open("/dev/null", os.O_RDWR)
        wanted = [numbers[0], numbers[1] if len(numbers) > 1 else null, *ends]
        above = AGENT + len(wanted)  # above the descriptors that the warden expects
        orders = socket.socket(fileno=fcntl.fcntl(orders.detach(), fcntl.F_DUPFD_CLOEXEC, above))
        for place, number in enumerate([fcntl.fcntl(number, fcntl.F_DUPFD, above) for number in wanted]):
            os.dup2(number, AGENT + place)
        for number in (signal.SIGPIPE, signal.SIGXFSZ):  # Python ignores these signals
            signal.signal(number, signal.SIG_DFL)
        warm = ",".join(f"{FIRST_WORKER + place}:{pid}" for place, pid in enumerate(pids))
        os.execv(order["program"], [*order["arguments"], warm])
    except OSError as error:
        with contextlib.suppress(OSError):  # the helper has gone
            orders.send(struct.pack("=i", error.errno))
    except ValueError:  # no order came: the helper has gone
        pass
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    os._exit(1)


# ---- A worker. ----


class Failed(Exception):
    """The worker can't run as ordered. Arguments: protocol.h's Stage, and an errno value."""


class Fresh(Exception):
    """The worker must start as a fresh Python. Its argument is protocol.h's Fresh."""


def step(stage, function, *arguments):
    try:
        return function(*arguments)
    except OSError as error:
        raise Failed(stage, error.errno) from None


def enter(cgroup):
    number = os.open("cgroup.procs", os.O_WRONLY | os.O_CLOEXEC, dir_fd=cgroup)
    os.write(number, b"0")  # 0: the calling process
    os.close(number)


def become(warden, began_with, changed):
    """Waits for the warden's order, then sets the worker up as warden.cc's run_child() does."""
    data, numbers = receive(warden, REQUEST.size)
    if len(data) != REQUEST.size:
        os._exit(127)  # the warden has gone
    fields = REQUEST.unpack(data)
    num_arguments, max_open_files, cpus = fields[4], fields[7], fields[8:24]
    payload, streams, told, cgroup = numbers[0], numbers[1:4], numbers[4], numbers[5:]
    try:
        os.setsid()
        libc.prctl(SET_PTRACER, ctypes.c_ulong(agent_pid), 0, 0, 0)
        if cgroup:
            step(AT_CGROUP, enter, cgroup[0])
        with open(payload, "rb") as file:
            file.seek(0)  # the offset is where the agent stopped writing
            directory, *strings = file.read().split(b"\0")[:-1]
        for number, stream in enumerate(streams):
            os.dup2(stream, number)
        for number in {*streams, *cgroup} - {0, 1, 2}:
            os.close(number)
        if max_open_files:
            hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
            soft = max_open_files if hard == resource.RLIM_INFINITY else min(max_open_files, hard)
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        wanted = {64 * word + bit for word, bits in enumerate(cpus) for bit in range(64) if bits >> bit & 1}
        is_bound = bool(wanted) and wanted != os.sched_getaffinity(0)
        if wanted:
            step(AT_CPUS, os.sched_setaffinity, 0, wanted)
        if directory:
            step(AT_DIRECTORY, os.chdir, directory)
        signal.pthread_sigmask(signal.SIG_SETMASK, [])
        arguments = strings[:num_arguments]
        given = dict(string.partition(b"=")[::2] for string in strings[num_arguments:])
        environment, observer = without_observer(given)
        try:
            if is_bound and not environment.get(b"OMP_NUM_THREADS"):
                raise Fresh(OTHER_CPUS)  # an imported library has already counted the CPUs
            source = source_of(arguments, environment, began_with, changed)
        except Fresh as why:
            os.write(told, SPAWN_ERROR.pack(why.args[0], FRESH))
            step(AT_EXEC, os.execve, arguments[0], arguments, given)  # which closes `told`
        os.environb.clear()
        os.environb.update(environment)
        for name, value in changed.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
        if observer:
            exec(compile(observer, "<ddprun observer>", "exec"), {"__name__": "observer"})  # pylint: disable=exec-used
    except Failed as failed:
        stage, number = failed.args
        os.write(told, SPAWN_ERROR.pack(number, stage))
        os._exit(127)
    warden.close()
    return [os.fsdecode(argument) for argument in arguments], source, told


def program_at(arguments):
    """Returns the index of the script's name, or of -m. ddprun has checked the flags (warm_helper.cc)."""
    at = 1
    while at < len(arguments) and arguments[at].startswith("-") and arguments[at] != "-m":
        word = arguments[at]
        has_value = word == "--check-hash-based-pycs" or word[-1] in "WX" and not {"W", "X"} & set(word[:-1])
        at += 2 if has_value else 1
    return at


def without_observer(given):
    """Returns the worker's environment without the observer's folder in PYTHONPATH, and the observer's text or None."""
    folder, _, rest = given.get(b"PYTHONPATH", b"").partition(b":")
    if folder != os.path.join(os.path.dirname(given.get(b"DDPRUN_AGENT_SOCKET", b"")), b"observe"):
        return given, None
    environment = {**given, b"PYTHONPATH": rest}
    if not rest:
        del environment[b"PYTHONPATH"]
    try:
        with open(os.path.join(folder, b"sitecustomize.py"), "rb") as file:
            return environment, file.read()
    except OSError:  # the agent could not write it, and has said so
        return environment, None


def source_of(arguments, environment, began_with, changed):
    """Returns the script's text, or an empty one for a module. Raises Fresh."""
    before = {os.fsencode(name): os.fsencode(value) for name, value in began_with.items()}
    for name in {*before, *environment}:  # Python reads PYTHON… only at its start
        if name.startswith(b"PYTHON") and environment.get(name) != before.get(name):
            raise Fresh(OTHER_PYTHON_VARIABLES)
    for name in map(os.fsencode, changed):  # with another first value the import might have set another one
        if environment.get(name) != before.get(name):
            raise Fresh(OTHER_VARIABLES)
    words = [os.fsdecode(argument) for argument in arguments]
    at = program_at(words)
    if words[at:at + 1] == ["-m"] and at + 1 < len(words):
        return b""
    with contextlib.suppress(OSError):  # the fresh Python will say what is wrong
        if at < len(words) and stat.S_ISREG(os.stat(words[at]).st_mode):  # a pipe could be read only once
            with open(words[at], "rb") as file:
                source = file.read()
            if b"\0" not in source:  # otherwise compiled, or an archive
                return source
    raise Fresh(NO_SOURCE)


def reseed():
    """Gives NumPy and PyTorch new seeds after the fork. Python's `random` does so itself."""
    numpy, torch = sys.modules.get("numpy.random"), sys.modules.get("torch")
    if numpy is not None:
        numpy.seed()
    if hasattr(torch, "default_generator"):  # the CPU's, which has a random seed; those of GPUs are made later
        torch.default_generator.seed()


def command_line():
    """Returns the addresses of begin and end of this process' command line."""
    with open("/proc/self/stat", "rb") as file:
        return tuple(map(int, file.read().rsplit(b")", 1)[1].split()[45:47]))


room = command_line()


def show_as(arguments):
    """Sets the command line that ps shows. It is cut to the room of this process' first one, which is long."""
    name = os.path.basename(arguments[0])
    libc.prctl(SET_NAME, os.fsencode(name)[:15], 0, 0, 0)
    begin, end = room
    text = b"\0".join(map(os.fsencode, arguments))[:end - begin - 1]
    ctypes.memmove(begin, text + bytes(end - begin - len(text)), end - begin)
    libc.prctl(SET_MM, SET_MM_ARG_END, ctypes.c_ulong(begin + len(text) + 1), 0, 0)  # needs root; else zeros follow


def run(arguments, source, told):
    at = program_at(arguments)
    for stream, number in ((sys.stdin, 0), (sys.stdout, 1)):
        if stream is not None:
            stream.reconfigure(line_buffering=os.isatty(number) and not stream.write_through)
    reseed()
    heed_thread_variables()
    show_as(arguments)
    if hasattr(sys, "orig_argv"):
        sys.orig_argv[:] = arguments
    main = type(sys)("__main__")
    main.__builtins__ = builtins
    if sys.version_info < (3, 14):
        main.__annotations__ = {}
    sys.modules["__main__"] = main
    is_module = arguments[at] == "-m"
    sys.argv[:] = arguments[at + 1:] if is_module else arguments[at:]
    os.close(told)
    if is_module:
        import runpy
        return runpy._run_module_as_main(sys.argv[0])
    script = os.path.abspath(sys.argv[0])
    main.__dict__.update(__file__=script, __cached__=None,
                         __loader__=importlib.machinery.SourceFileLoader("__main__", script))
    exec(compile(source, script, "exec", dont_inherit=True), main.__dict__)  # pylint: disable=exec-used


def helped():
    agent = socket.socket(fileno=AGENT)
    agent.set_inheritable(False)
    try:
        helper = Helper(agent)
        worker = helper.serve()
    except Exception as why:
        if os.getpid() != helper_pid:
            raise
        for pid in children():  # which a module started
            os.kill(int(pid), signal.SIGKILL)
        answer(agent, cold=str(why) if isinstance(why, Cold) else f"the helper failed: {type(why).__name__}: {why}")
        os._exit(0)
    try:
        run(*worker)
        return helper.ended(in_order=True)
    except SystemExit as end:
        helper.ended(in_order=end.code in (None, 0))
        raise
    except BaseException as error:  # as Python shows it: without the frames of this file
        helper.ended(in_order=False)
        trace = error.__traceback__
        while trace is not None and trace.tb_frame.f_globals is globals():
            trace = trace.tb_next
        failed = error.with_traceback(trace)
    sys.last_exc = failed
    sys.last_type, sys.last_value, sys.last_traceback = type(failed), failed, failed.__traceback__
    sys.excepthook(type(failed), failed, failed.__traceback__)
    if isinstance(failed, KeyboardInterrupt):
        import atexit
        import threading
        threading._shutdown()
        atexit._run_exitfuncs()
        sys.stdout.flush()
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)
    raise SystemExit(1)


helped()
