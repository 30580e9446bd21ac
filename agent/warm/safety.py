# SPDX-License-Identifier: Apache-2.0
# A part of the warm helper's program: whether a fork is safe. CMake puts it before warm_helper.py, which imports the modules
# that are used here.


class Cold(Exception):
    """No worker can be forked from this process. The text says why."""


POOL_SECONDS = 1  # a forked child that has not ended then is killed


def other_threads(only_pythons=False):
    """Returns the names of this process' threads but the main one, those of Python as Python names them."""
    threading, found = sys.modules.get("threading"), []
    names = {thread.native_id: thread.name for thread in threading.enumerate()} if threading else {}
    for number in os.listdir("/proc/self/task"):
        if int(number) != os.getpid() and (not only_pythons or int(number) in names):
            with contextlib.suppress(OSError):  # it has ended
                with open(f"/proc/self/task/{number}/comm", encoding="utf-8", errors="replace") as file:
                    found.append(names.get(int(number)) or file.read().strip())
    return sorted(found)


def lasting_threads(only_pythons=False):
    """Returns the names of the threads that go on. One that was joined may be listed a moment longer."""
    deadline = time.monotonic() + 0.2
    while (names := other_threads(only_pythons)) and time.monotonic() < deadline:
        time.sleep(0.001)
    return names


def end_pools():
    """Ends the threads of libraries that end them before a fork and make new ones after it, as OpenBLAS does. For this it
    forks as C does: Python's own hooks don't belong to a look at threads."""
    python = ctypes.PyDLL(None)  # it keeps Python's lock
    pid = python.fork()
    if pid == 0:
        python._exit(0)
    deadline = time.monotonic() + POOL_SECONDS
    while pid > 0 and os.waitpid(pid, os.WNOHANG) == (0, 0):
        if time.monotonic() > deadline:
            os.kill(pid, signal.SIGKILL)  # a thread that `threading` doesn't know wanted Python's lock, so the child waits for it
            os.waitpid(pid, 0)
            break
        time.sleep(0.001)


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
    """Returns the paths of all modules' files, each with facts that change with the file."""
    found = {}
    for module in list(sys.modules.values()):
        try:
            path = getattr(module, "__file__", None)
            status = os.stat(path) if isinstance(path, str) else None
        except Exception:
            continue  # the module is in an archive, or lazy
        if status is not None:
            found[os.fsencode(path)] = facts_of(status)
    return found


def have_changed(files):
    """Returns whether one of module_files()' files has changed. Reads no module, for that would copy shared pages."""
    try:
        return any(facts_of(os.stat(path)) != facts for path, facts in files.items())
    except OSError:
        return True


MOST_SECONDS = 0.5  # the limit for the look at all files, for which ddprun waits at each round

# Modules whose threads or connections don't survive a fork, with the reason.
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
    monitoring = getattr(sys, "monitoring", None)
    tools = [monitoring.get_tool(number) for number in range(6)] if monitoring else []
    if sys.gettrace() is not None or sys.getprofile() is not None or any(tools):
        raise Cold("a debugger, profiler or coverage follows this Python")


def check_threads(names):
    if names:
        raise Cold(f"an imported module has threads ({len(names)}: {', '.join(names[:3])}), which do not survive a fork")


def check(before, copies):
    """Raises Cold if a fork isn't safe now. `before`: the descriptors before the imports."""
    check_modules()
    before, own = (before | copies.descriptors(), {str(copies.between)}) if copies else (before, set())
    if other_threads():
        check_threads(lasting_threads(only_pythons=True))  # a child of end_pools() could wait for one of these
        end_pools()
    check_threads(lasting_threads())
    strangers = [pid for pid in children() if pid not in own]
    if strangers:
        raise Cold(f"an imported module started a process (pid {strangers[0]})")
    for number, name in descriptors().items():
        if number not in before and not name.startswith(("/dev/null", "/dev/urandom", "/dev/random")):
            raise Cold(f"an imported module holds {name} open")


def shared_memory():
    """Returns the memory that this process' forks can write to for it and for each other: (device, inode) → its kind."""
    found = {}
    with open("/proc/self/maps", "rb") as file:
        for line in file:
            if line.split(b" ", 2)[1][1::2] == b"ws":  # of the four letters as in "rw-s"
                _, _, _, device, inode, *path = line.decode(errors="replace").split(None, 5)
                name = "".join(path).strip()
                found[device, inode] = ("a lock or semaphore" if name.startswith("/dev/shm/sem.") else
                                        "anonymous memory" if name.startswith("/dev/zero") else name)
    return found


def check_shared(before):
    """Raises Cold if there is shared memory that was not there `before`. A worker that is killed would leave its state, such as
    a lock that it holds, to all later ones."""
    new = [kind for key, kind in shared_memory().items() if key not in before]
    if new:
        raise Cold(f"an imported module shares {new[0]} with the processes that are forked from it")
