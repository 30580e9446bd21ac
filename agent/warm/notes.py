# SPDX-License-Identifier: Apache-2.0
# A part of the warm helper's program: what `--preload=auto` learns. CMake puts it before warm_helper.py, which imports the
# modules that are used here.
#
# A worker writes the names of what it imports into memory that it shares with the helper. So a worker that is killed has told
# them, too, and none needs a thread for it.
STEP, END = b"s", b"e"  # a worker's words: an optimizer made a step, the program has ended in order
LOOK_SECONDS = 10       # the helper looks after so many seconds at what has been noted, also without a word
PART_BYTES = 1 << 19    # the memory of one worker; the system gives only what is used of it
LIST = 4                # descriptor: ddprun's memory file with the list, for the helper that replaces this one


class Notes:
    """The modules that the workers import, seen from the helper. A file keeps them for the next job."""

    def __init__(self, options):
        self.reader, self.writer = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.reader.setblocking(False)
        self.memory, self.read_to = None, []  # a part for each worker, and how far it was read
        self.untaken = []
        self.folders = python_folders()
        self.has_list = options["has_list"]
        # The user id is in the name, because several users may share the folder.
        program = os.fsencode("\0".join((sys.executable, sys.version, options["program"], str(os.getuid()))))
        self.file = os.path.join(options["cache"], hashlib.sha256(program).hexdigest()[:32] + ".json")
        self.is_kept = bool(options["cache"])
        self.num_kept = 0  # the names in the file

    def load(self):
        """Returns the names that this job's last helper had, or else an earlier job kept."""
        names = self.load_file() if self.is_kept else []
        self.num_kept = len(names)
        with contextlib.suppress(OSError, ValueError):  # there is no list, or it was not finished
            if self.has_list:
                return json.loads(os.pread(LIST, MOST_BYTES_KEPT, 0))
        return names

    def load_file(self):
        try:
            number = os.open(self.file, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
            with open(number, encoding="utf-8") as file:
                status = os.fstat(number)
                if status.st_uid != os.getuid() or status.st_mode & 0o022 or not stat.S_ISREG(status.st_mode):
                    return []  # another user may have written it, and its modules would run here
                if status.st_size > MOST_BYTES_KEPT:
                    return []
                names = json.load(file)
            return [name for name in names if isinstance(name, str)]
        except Exception:
            return []

    def remember(self, names):
        """Keeps the names for this job."""
        if self.has_list:
            with contextlib.suppress(OSError):
                os.ftruncate(LIST, 0)
                os.pwrite(LIST, json.dumps(names).encode(), 0)

    def keep(self, names):
        """Keeps the names for the next job. Returns why that failed, or an empty text."""
        if not self.is_kept or len(names) <= self.num_kept:
            return ""
        self.num_kept = len(names)
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
        """Removes the list, which can't be used."""
        if self.is_kept:
            self.remove(self.file)

    @staticmethod
    def remove(path):
        with contextlib.suppress(OSError):
            os.remove(path)

    def make_room(self, num_workers):
        if num_workers > len(self.read_to):
            self.untaken = self.take()
            self.memory, self.read_to = mmap.mmap(-1, num_workers * PART_BYTES), [0] * num_workers

    def take(self):
        """Returns the names that were noted since the last call."""
        names, self.untaken = dict.fromkeys(self.untaken), []
        for worker, begin in enumerate(self.read_to):
            part = worker * PART_BYTES
            self.read_to[worker] = end = min(struct.unpack_from("=I", self.memory, part)[0], PART_BYTES - 4)
            names.update(dict.fromkeys(self.memory[part + 4 + begin:part + 4 + end].decode(errors="replace").split("\n")[:-1]))
        return list(names)

    def hear(self):
        """Returns a worker's word; an empty one if there is none."""
        try:
            return self.reader.recv(1)
        except OSError:
            return b""


def python_folders():
    """Returns Python's own folders, each with a slash at its end."""
    paths = sysconfig.get_paths()
    folders = {paths[name] for name in ("stdlib", "platstdlib", "purelib", "platlib")}
    site = sys.modules.get("site")
    if site is not None:
        folders |= {*site.getsitepackages(), site.getusersitepackages()}
    return tuple(os.path.join(os.path.realpath(folder), "") for folder in folders)


class Watch:
    """An import hook of a worker, until an optimizer of PyTorch has made a step. It notes the imported modules, but only
    those in Python's own folders: others may be edited."""
    MODULE = "torch.optim.optimizer"

    def __init__(self, notes):
        self.memory, self.writer, self.folders = notes.memory, notes.writer, notes.folders
        self.pid, self.known, self.part = os.getpid(), set(sys.modules), None
        self.is_installed, self.has_hook = {}, False  # the first one: by a folder's path
        self.lock, self.look_at = _thread.allocate_lock(), 0.0
        sys.meta_path.insert(0, self)

    def begin(self):
        """Called when the worker has its environment."""
        part = int(os.environ.get("LOCAL_RANK", "0")) * PART_BYTES
        self.part = part if part < len(self.memory) else None
        module = sys.modules.get(self.MODULE)
        if module is not None:  # the helper has imported it, so find_spec() won't see it
            self.has_hook = True
            self.await_step(module)

    def find_spec(self, name, path=None, target=None):
        self.look()
        if name != self.MODULE or self.has_hook:
            return None
        self.has_hook = True
        spec = importlib.util.find_spec(name)
        load = getattr(getattr(spec, "loader", None), "exec_module", None)

        def load_and_watch(module):
            load(module)
            self.await_step(module)
        if load is not None:
            spec.loader.exec_module = load_and_watch
        return spec

    def await_step(self, module):
        if hasattr(module, "register_optimizer_step_post_hook"):  # it stays: it can't be removed while it runs
            module.register_optimizer_step_post_hook(lambda *_: self.tell(STEP))

    def look(self, at_once=False):
        """Notes the modules that are new. It has a fiftieth of the time at most, unless `at_once`."""
        if os.getpid() != self.pid or self.part is None or not self.lock.acquire(False):
            return  # a child of the worker, or another thread looks
        try:
            now, begun = time.monotonic(), time.thread_time()
            if now >= self.look_at or at_once:
                names = [name for name in list(sys.modules) if name not in self.known]
                self.known.update(names)
                self.note("".join(f"{name}\n" for name in names if self.is_wanted(name)).encode(errors="replace"))
                self.look_at = now + 50 * (time.thread_time() - begun)
        finally:
            self.lock.release()

    def note(self, text):
        (length,) = struct.unpack_from("=I", self.memory, self.part)
        text = text[:PART_BYTES - 4 - length]
        text = text[:text.rfind(b"\n") + 1]
        begin = self.part + 4 + length
        self.memory[begin:begin + len(text)] = text
        struct.pack_into("=I", self.memory, self.part, length + len(text))

    def is_wanted(self, name):
        try:
            facts = object.__getattribute__(sys.modules[name], "__dict__")  # getattr() would load a lazy module
        except (AttributeError, KeyError):
            return False
        path = facts.get("__file__")
        if name == "__main__" or facts.get("__spec__") is None:
            return False
        if not isinstance(path, str):
            return path is None
        if not os.path.isabs(path):  # its working directory may be gone
            return False
        folder = os.path.dirname(path)
        if folder not in self.is_installed:
            self.is_installed[folder] = os.path.join(os.path.realpath(folder), "").startswith(self.folders)
        return self.is_installed[folder]

    def tell(self, word):
        """Tells the helper, once, which then takes what is noted."""
        if self.writer is None or os.getpid() != self.pid:
            return
        self.look(at_once=True)
        with contextlib.suppress(OSError):  # the training goes on without; or another worker has told it
            self.writer.send(word, socket.MSG_DONTWAIT)
        self.writer.close()
        self.writer = None
        with contextlib.suppress(ValueError):
            sys.meta_path.remove(self)
