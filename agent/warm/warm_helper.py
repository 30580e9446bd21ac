# SPDX-License-Identifier: Apache-2.0
# A node's warm helper (docs/warm.md): imports modules once, then forks workers that have them already.
# ddprun starts it as `python FLAGS -c THIS JSON`, with a SOCK_SEQPACKET as descriptor 3. JSON has "modules"; "path",
# the sys.path[0] of the workers; "auto", whether workers tell what they have imported by their first step. It also
# has "program" and "cache", a folder where that is kept, and "most_bytes" of memory. Each message is one JSON object.
# From here come {"ready": N} or {"cold": WHY}, which is the last. An order {"program", "arguments", "workers"} comes
# with the socket of a new warden, and its cgroup where it has one. The answer is {"warden": PID}, or {"cold": WHY}.
# {"found": N} asks for the order {"import": true}, until whose {"ready": N} no other order comes.
#
# The warden is started by a copy of this process, which forks the workers first. So they are the warden's own children.
# When a round has begun, such copies are made for the next one.
import sys

HAS_FIRST_PATH = not (sys.flags.isolated or getattr(sys.flags, "safe_path", False))
if HAS_FIRST_PATH:
    del sys.path[0]  # the working directory, in which another user may have put a module

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
    """A module's functions before the imports: a module of the user's may replace them."""

    def __init__(self, module):
        self.__dict__.update(vars(module))


array, contextlib, ctypes, fcntl, gc, json, os, resource, select, signal, socket, stat, struct, time = map(
    AsItWas, (array, contextlib, ctypes, fcntl, gc, json, os, resource, select, signal, socket, stat, struct, time))
open = open  # pylint: disable=redefined-builtin,self-assigning-variable

AGENT, FIRST_WORKER = 3, 5  # descriptors of the warden, whose cgroup is 4; 3 is the agent's here
REQUEST = struct.Struct("=IIIiIIQQ16Qqq")  # agent/warden/protocol.h
SPAWN_ERROR = struct.Struct("=iI")
AT_DIRECTORY, AT_EXEC, AT_CPUS, AT_CGROUP, FRESH = 2, 3, 5, 6, 7  # protocol.h's Stage
OTHER_CPUS, OTHER_PYTHON_VARIABLES, OTHER_VARIABLES, NO_SOURCE = 1, 2, 3, 4  # protocol.h's Fresh
MOST_BYTES_KEPT = 1 << 20  # of a list of modules
PDEATHSIG, SET_NAME, SET_PTRACER, SET_MM, SET_MM_ARG_END = 1, 15, 0x59616D61, 35, 9  # prctl(2)
libc = ctypes.CDLL(None, use_errno=True)
agent_pid, helper_pid = os.getppid(), os.getpid()


class Cold(Exception):
    """Why no worker can be forked from this process."""


# ---- Is a fork safe? ----


def pool_threads():
    """Threads of OpenBLAS, which ends them before a fork and makes new ones after it."""
    count = 0
    with open("/proc/self/maps", encoding="utf-8", errors="replace") as maps:
        libraries = {line.split(None, 5)[5].strip() for line in maps if "openblas" in line and len(line.split(None, 5)) == 6}
    for path in libraries:
        library = ctypes.CDLL(path)
        for name in ("openblas_get_num_threads", "openblas_get_num_threads64_", "scipy_openblas_get_num_threads64_",
                     "scipy_openblas_get_num_threads"):
            if hasattr(library, name):
                count += getattr(library, name)() - 1
                break
    return count


def descriptors():
    found = {}
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):  # the listing's own
            found[int(name)] = os.readlink("/proc/self/fd/" + name)
    return found


def children():
    with open(f"/proc/self/task/{os.getpid()}/children", encoding="ascii") as file:
        return file.read().split()


def facts_of(status):
    return status.st_mtime_ns, status.st_size, status.st_ino


def module_files():
    """Their paths, each with facts that change with the file."""
    found = {}
    for module in list(sys.modules.values()):
        try:
            path = getattr(module, "__file__", None)
            status = os.stat(path) if isinstance(path, str) else None
        except Exception:
            continue  # in an archive, or a lazy module
        if status is not None:
            found[os.fsencode(path)] = facts_of(status)
    return found


def have_changed(files):
    """`files`: of module_files(). Modules aren't looked at: that writes to pages which others share, and each is copied."""
    try:
        return any(facts_of(os.stat(path)) != facts for path, facts in files.items())
    except OSError:
        return True


MOST_SECONDS = 0.5  # ddprun waits for it at each round

# A fork ends what these have begun.
UNSAFE = {"mpi4py.MPI": "MPI is initialised", "grpc._cython.cygrpc": "gRPC has threads", "tensorflow": "TensorFlow has threads"}


def check_modules():
    for name, why in UNSAFE.items():
        if name in sys.modules:
            raise Cold(f"{name} was imported: {why}")
    cuda = sys.modules.get("torch.cuda")
    if cuda is not None and cuda.is_initialized():
        raise Cold("a module initialised CUDA, which does not survive a fork")
    bridge = sys.modules.get("jax._src.xla_bridge")
    if bridge is not None and getattr(bridge, "_backends", None):
        raise Cold("a module started a backend of JAX, which does not survive a fork")
    if sys.gettrace() is not None or sys.getprofile() is not None:
        raise Cold("a debugger, profiler or coverage follows this Python")


def check(before, copies):
    """`before`: the descriptors before the imports."""
    check_modules()
    before, own = (before | copies.descriptors(), {str(copies.between)}) if copies else (before, set())
    others = len(os.listdir("/proc/self/task")) - 1
    if others and others > pool_threads():
        raise Cold(f"an imported module has threads ({others}), which do not survive a fork")
    strangers = [pid for pid in children() if pid not in own]
    if strangers:
        raise Cold(f"an imported module started a process (pid {strangers[0]})")
    for number, name in descriptors().items():
        if number not in before and not name.startswith(("/dev/null", "/dev/urandom", "/dev/random")):
            raise Cold(f"an imported module holds {name} open")


# ---- The helper. ----


def import_one(name):
    try:
        importlib.import_module(name)
    finally:
        if os.getpid() != helper_pid:
            os._exit(0)  # the module has forked it: as the helper it would answer ddprun, too


def check_memory(name, most_bytes):
    """Looks at this process' own memory. The kernel can drop that of files."""
    with open("/proc/self/statm", encoding="ascii") as file:
        _, resident, of_files, *_ = map(int, file.read().split())
    own = (resident - of_files) * resource.getpagesize()
    if own > most_bytes:
        raise Cold(f"with {name} the imports have {own >> 20} MiB of memory, they may have {most_bytes >> 20}")


def import_all(names, most_bytes):
    for name in names:
        try:
            import_one(name)
        except BaseException as error:  # also SystemExit
            words = str(error).split("\n")[0][:300]
            raise Cold(f"{name} can't be imported: {type(error).__name__}{': ' + words if words else ''}") from None
        check_memory(name, most_bytes)


def import_what_is_there(names, most_bytes, in_a_hurry):
    """Leaves out those that can't be imported by themselves. Works a third of the time, while workers train."""
    for name in names:
        if name in UNSAFE:
            raise Cold(f"the workers import {name}: {UNSAFE[name]}")
    for name in names:
        begun = time.monotonic()
        with contextlib.suppress(BaseException):  # also SystemExit
            import_one(name)
        check_memory(name, most_bytes)
        if not in_a_hurry:
            time.sleep(2 * (time.monotonic() - begun))


def write_out():
    """Else each worker writes once more what modules have written."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(AttributeError, OSError, ValueError):  # a module has replaced or closed it
            stream.flush()
    libc.fflush(None)


def installed_modules():
    """Names of imported modules, in the order of their imports. Only of the Python's own folders: others may be edited."""
    paths = sysconfig.get_paths()
    folders = {paths[name] for name in ("stdlib", "platstdlib", "purelib", "platlib")}
    site = sys.modules.get("site")
    if site is not None:
        folders |= {*site.getsitepackages(), site.getusersitepackages()}
    folders = tuple(os.path.join(os.path.realpath(folder), "") for folder in folders)
    found = []
    for name, module in list(sys.modules.items()):
        try:
            path = getattr(module, "__file__", None)
            has_spec = getattr(module, "__spec__", None) is not None
        except Exception:
            continue  # a lazy one
        if has_spec and name != "__main__" and (path is None or isinstance(path, str) and os.path.realpath(path).startswith(folders)):
            found.append(name)
    return found


class Notes:
    """Modules that a worker had imported by its first step, over a socket, and in a file for the next job."""

    def __init__(self, options):
        self.reader, self.writer = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.reader.setblocking(False)
        # The user, too: several may keep their lists in one folder.
        program = os.fsencode("\0".join((sys.executable, sys.version, options["program"], str(os.getuid()))))
        self.file = os.path.join(options["cache"], hashlib.sha256(program).hexdigest()[:32] + ".json")
        self.is_kept = bool(options["cache"])

    def load(self):
        """The names of an earlier job, or none."""
        if not self.is_kept:
            return []
        try:
            number = os.open(self.file, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
            with open(number, encoding="utf-8") as file:
                status = os.fstat(number)
                if status.st_uid != os.getuid() or status.st_mode & 0o022 or not stat.S_ISREG(status.st_mode):
                    return []  # somebody else may have written it: its modules would run here
                if status.st_size > MOST_BYTES_KEPT:
                    return []
                names = json.load(file)
            return [name for name in names if isinstance(name, str)]
        except Exception:
            return []

    def save(self, names):
        """Empty, or why it could not."""
        if not self.is_kept:
            return ""
        new = f"{self.file}.{os.getpid()}"
        try:
            os.makedirs(os.path.dirname(self.file), mode=0o700, exist_ok=True)
            number = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
            with open(number, "w", encoding="utf-8") as file:
                json.dump(names, file)
            os.replace(new, self.file)
            return ""
        except OSError as error:
            self.remove(new)
            return f"{os.path.dirname(new)}: {error.strerror}"

    def forget(self):
        """The list can't be used."""
        if self.is_kept:
            self.remove(self.file)

    @staticmethod
    def remove(path):
        with contextlib.suppress(OSError):
            os.remove(path)

    def receive(self):
        """None: there is nothing new."""
        try:
            _, (number,) = receive(self.reader, 1)
        except (BlockingIOError, ValueError):
            return None
        with open(number, encoding="utf-8") as file:
            file.seek(0)
            return json.load(file)

    def send(self):
        """Once, in a worker."""
        writer, self.writer = self.writer, None
        if writer is None:
            return
        try:
            number = os.memfd_create("ddprun-modules")
            with open(number, "w", encoding="utf-8") as file:
                json.dump(installed_modules(), file)
                file.flush()
                writer.sendmsg([b"m"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [number]))], socket.MSG_DONTWAIT)
        except Exception:
            pass  # the training is what counts; or another worker has told it
        writer.close()

    def watch(self):
        """In a worker: tells at the first step of any of PyTorch's optimizers, else at the end."""
        import atexit
        atexit.register(self.send)
        sys.meta_path.insert(0, StepFinder(self))


class StepFinder:
    """Waits for PyTorch's optimizers to be imported."""
    MODULE = "torch.optim.optimizer"

    def __init__(self, notes):
        self.notes = notes

    def find_spec(self, name, path=None, target=None):
        if name != self.MODULE:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        load = spec.loader.exec_module

        def load_and_watch(module):
            load(module)
            if hasattr(module, "register_optimizer_step_post_hook"):  # it stays: it can't be removed while it is called
                module.register_optimizer_step_post_hook(lambda *_: self.notes.send())
        spec.loader.exec_module = load_and_watch
        return spec


def answer(agent, **what):
    agent.send(json.dumps(what).encode())


def receive(sock, size):
    """(bytes, descriptors), which a new program doesn't get."""
    numbers = array.array("i")
    data, parts, _, _ = sock.recvmsg(size, socket.CMSG_SPACE(16 * numbers.itemsize), socket.MSG_CMSG_CLOEXEC)
    for level, kind, content in parts:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            numbers.frombytes(content[:len(content) - len(content) % numbers.itemsize])
    return data, list(numbers)


UNDISTURBED_SECONDS = 1  # a round's begin


class Helper:
    """This process, before it forks and after."""

    def __init__(self, agent):
        self.agent = agent
        self.options = json.loads(sys.argv[1])
        self.began_with = dict(os.environ)
        self.is_allowed = set()  # descriptors
        self.files = {}          # of modules
        self.changed = {}        # variables that an import has set
        self.copies = None       # for the next round
        self.num_workers = 0     # of the last one
        self.folder = os.getcwd()
        if sys.implementation.name != "cpython" or not hasattr(os, "pidfd_open"):
            raise Cold("it needs CPython 3.9 or later")
        if HAS_FIRST_PATH:
            sys.path.insert(0, self.options["path"])
        self.notes = Notes(self.options) if self.options["auto"] else None
        self.names = self.notes.load() if self.notes else []
        self.is_noted = bool(self.names)

    def load(self):
        """Imports, by order of ddprun."""
        self.drop_copies()
        most_bytes = self.options["most_bytes"]
        import_all(self.options["modules"], most_bytes)
        try:
            import_what_is_there(self.names, most_bytes, in_a_hurry=not self.files)
            check(self.is_allowed, None)
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
        gc.freeze()  # a collection would write to pages that the workers share
        show_as([f"ddprun-warm: {len(sys.modules)} modules"])
        answer(self.agent, ready=len(sys.modules), of=len(self.options["modules"]) + len(self.names))

    def serve(self):
        """Returns in a worker: its arguments, and the descriptor to close when it runs."""
        self.is_allowed = set(descriptors())
        self.load()
        while True:
            reading = [self.agent] if self.is_noted or not self.notes else [self.agent, self.notes.reader]
            may_copy = self.num_workers > 0 and self.copies is None and (self.is_noted or not self.notes)
            ready, _, _ = select.select(reading, [], [], UNDISTURBED_SECONDS if may_copy else None)
            if not ready:
                check(self.is_allowed, None)
                worker = self.copy([])
                if worker is not None:
                    return self.become(worker)
                continue
            if self.agent not in ready:
                names = self.notes.receive()
                if names is not None:
                    self.names, self.is_noted = names, True
                    answer(self.agent, found=len(names), problem=self.notes.save(names))
                continue
            data, numbers = receive(self.agent, 1 << 16)
            if not data:
                os._exit(0)
            order = json.loads(data)
            if "import" in order:
                self.load()
                continue
            check({*self.is_allowed, *numbers}, self.copies)
            if have_changed(self.files):
                raise Cold("the file of an imported module has changed")
            worker = self.start_warden(data, order["workers"], numbers)
            if worker is not None:
                return self.become(worker)
            for number in numbers:
                os.close(number)

    def copy(self, numbers):
        """None; in a worker its socket."""
        self.copies = Copies(self.num_workers, self.agent, numbers)
        return self.copies.worker

    def drop_copies(self):
        if self.copies is not None:
            self.copies.end()
        self.copies = None

    def start_warden(self, order, num_workers, numbers):
        """Tells the warden's number. None; in a worker its socket."""
        if self.num_workers != num_workers:
            self.drop_copies()
        self.num_workers = num_workers
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
        answer(self.agent, warden=pid)
        return None

    def become(self, warden):
        """In a worker."""
        if self.notes:
            self.notes.reader.close()
            if self.is_noted:
                self.notes.writer.close()
            else:
                self.notes.watch()
        os.chdir(self.folder)  # a module may have left it
        return become(warden, self.began_with, self.changed)


class Copies:
    """Copies of this process that wait: one to become a warden, and its children to become workers. So a round that begins
    finds them forked. `worker` is None; in such a child it is its socket."""

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
        """The warden's number, which is nobody's child then, and so the agent's. None: it could not. They are of no use after
        this."""
        try:
            self.orders.sendmsg([order], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", numbers))])
            os.write(self.go, b"x")
            told, failed = self.orders.recv(4), self.orders.recv(4)  # the second is empty when the warden runs
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
    """In the process between. It ends when the warden begins, or has ended."""
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
                    os._exit(127)  # it died before the line above
                for number in (*ends, here.detach(), orders.detach()):
                    os.close(number)
                return there
            there.close()
            ends.append(here.detach())
            pids.append(pid)
        data, numbers = receive(orders, 1 << 16)
        order = json.loads(data)
        while os.getppid() == between:  # then it is the agent's child
            with contextlib.suppress(ProcessLookupError):
                select.select([os.pidfd_open(between)], [], [])
        orders.send(struct.pack("=i", here_pid))  # all are there
        null = os.open("/dev/null", os.O_RDWR)
        wanted = [numbers[0], numbers[1] if len(numbers) > 1 else null, *ends]
        above = AGENT + len(wanted)  # out of the way of the warden's own
        orders = socket.socket(fileno=fcntl.fcntl(orders.detach(), fcntl.F_DUPFD_CLOEXEC, above))
        for place, number in enumerate([fcntl.fcntl(number, fcntl.F_DUPFD, above) for number in wanted]):
            os.dup2(number, AGENT + place)
        for number in (signal.SIGPIPE, signal.SIGXFSZ):  # Python ignores them
            signal.signal(number, signal.SIG_DFL)
        warm = ",".join(f"{FIRST_WORKER + place}:{pid}" for place, pid in enumerate(pids))
        os.execv(order["program"], [*order["arguments"], warm])
    except OSError as error:
        with contextlib.suppress(OSError):  # no order comes any more
            orders.send(struct.pack("=i", error.errno))
    except ValueError:  # likewise
        pass
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    os._exit(1)


# ---- A worker. ----


class Failed(Exception):
    """The worker can't run as it is told. `stage` is protocol.h's."""


class Fresh(Exception):
    """The worker is to be a fresh Python. Its argument is protocol.h's."""


def step(stage, function, *arguments):
    try:
        return function(*arguments)
    except OSError as error:
        raise Failed(stage, error.errno) from None


def enter(cgroup):
    number = os.open("cgroup.procs", os.O_WRONLY | os.O_CLOEXEC, dir_fd=cgroup)
    os.write(number, b"0")  # who writes
    os.close(number)


def become(warden, began_with, changed):
    """Waits for the warden's order, and does what it does in a child (warden.cc, run_child)."""
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
            file.seek(0)  # the agent wrote it
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
                raise Fresh(OTHER_CPUS)  # a library that is imported already has counted them
            source = source_of(arguments, environment, began_with, changed)
        except Fresh as why:
            os.write(told, SPAWN_ERROR.pack(why.args[0], FRESH))
            step(AT_EXEC, os.execve, arguments[0], arguments, given)  # `told` is closed by it
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
    """The place of the script's name, or of -m. ddprun has looked at the flags (warm_helper.cc)."""
    at = 1
    while at < len(arguments) and arguments[at].startswith("-") and arguments[at] != "-m":
        word = arguments[at]
        has_value = word == "--check-hash-based-pycs" or word[-1] in "WX" and not {"W", "X"} & set(word[:-1])
        at += 2 if has_value else 1
    return at


def without_observer(given):
    """The environment of a worker without the folder that Python would look for at its start, and the text there."""
    folder, _, rest = given.get(b"PYTHONPATH", b"").partition(b":")
    if folder != os.path.join(os.path.dirname(given.get(b"DDPRUN_AGENT_SOCKET", b"")), b"observe"):
        return given, None
    environment = {**given, b"PYTHONPATH": rest}
    if not rest:
        del environment[b"PYTHONPATH"]
    try:
        with open(os.path.join(folder, b"sitecustomize.py"), "rb") as file:
            return environment, file.read()
    except OSError:  # it was not made, which the agent has told
        return environment, None


def source_of(arguments, environment, began_with, changed):
    """The script's text, or nothing for a module. Raises Fresh."""
    before = {os.fsencode(name): os.fsencode(value) for name, value in began_with.items()}
    for name in {*before, *environment}:  # Python read these when it began
        if name.startswith(b"PYTHON") and environment.get(name) != before.get(name):
            raise Fresh(OTHER_PYTHON_VARIABLES)
    for name in map(os.fsencode, changed):  # an import set it: from another beginning it might set something else
        if environment.get(name) != before.get(name):
            raise Fresh(OTHER_VARIABLES)
    words = [os.fsdecode(argument) for argument in arguments]
    at = program_at(words)
    if words[at:at + 1] == ["-m"] and at + 1 < len(words):
        return b""
    with contextlib.suppress(OSError):  # Python says what is wrong
        if at < len(words) and stat.S_ISREG(os.stat(words[at]).st_mode):  # a pipe can be read once
            with open(words[at], "rb") as file:
                source = file.read()
            if b"\0" not in source:  # compiled, or an archive
                return source
    raise Fresh(NO_SOURCE)


def reseed():
    """`random` does so by itself after a fork."""
    numpy = sys.modules.get("numpy.random")
    if numpy is not None:
        numpy.seed()


def command_line():
    """Begin and end of this process' own."""
    with open("/proc/self/stat", "rb") as file:
        return tuple(map(int, file.read().rsplit(b")", 1)[1].split()[45:47]))


room = command_line()


def show_as(arguments):
    """For ps: the command line, as far as it has room in this process' first one, which is long."""
    name = os.path.basename(arguments[0])
    libc.prctl(SET_NAME, os.fsencode(name)[:15], 0, 0, 0)
    begin, end = room
    text = b"\0".join(map(os.fsencode, arguments))[:end - begin - 1]
    ctypes.memmove(begin, text + bytes(end - begin - len(text)), end - begin)
    libc.prctl(SET_MM, SET_MM_ARG_END, ctypes.c_ulong(begin + len(text) + 1), 0, 0)  # root alone may; else zeros follow


def run(arguments, source, told):
    at = program_at(arguments)
    for stream, number in ((sys.stdin, 0), (sys.stdout, 1)):
        if stream is not None:
            stream.reconfigure(line_buffering=os.isatty(number) and not stream.write_through)
    reseed()
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
        worker = Helper(agent).serve()
    except Exception as why:
        if os.getpid() != helper_pid:
            raise
        for pid in children():  # of a module
            os.kill(int(pid), signal.SIGKILL)
        answer(agent, cold=str(why) if isinstance(why, Cold) else f"the helper failed: {type(why).__name__}: {why}")
        os._exit(0)
    try:
        return run(*worker)
    except SystemExit:
        raise
    except BaseException as error:  # as Python shows it: without the frames of this file
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
