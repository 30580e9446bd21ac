# SPDX-License-Identifier: Apache-2.0
"""Tells this node's agent how far a plain PyTorch program is (docs/observe.md).

ddprun puts the folder of this file first into a worker's PYTHONPATH, so Python imports the file at its start. The file
takes the folder out again, imports the user's own sitecustomize, and waits for PyTorch's optimizers and data loaders.
A failure here prints one line on stderr, and the program goes on unobserved."""
import os
import sys

_PAGE_BYTES, _MAGIC = 4096, b"DDPRUNPG"
# Words of the agent's page (common/progress_page.h): the steps seen, those whose time is being added, those whose time
# was added, and the sums of the steps' and the loaders' times in ns.
_STEP, _BEGUN, _TIMED, _STEP_NS, _LOADER_NS = range(108, 113)
_PARTS = range(113, 118)  # forward, backward, communication, exposed in ns, then bytes
_GPU_PEAK, _SKIPPED, _REPORTS, _LOSS = range(118, 122)
_NAME, _NAME_END, _COLLECTIVES, _LOADED = range(122, 126)  # the last collective's name in two words, its number; samples
_PAUSE = 8  # an interval longer than so many mean steps is a pause (evaluation, checkpoint), not a step
_REST = 64  # another optimizer is counted instead if it has made so many steps since the counted one's last
_TRIES, _TRY_AFTER_NS = 3, 60 * 10**9
_LOOK, _LONG_NS = 10, 2 * 10**7  # costly readings are taken after each tenth step, and after a long one
# PyTorch takes the times of one iteration in so many; its default is 100. A prime number meets the first and the last
# backward of a step in turn. A long step on a CPU has its own times taken, for waits differ from step to step.
_CPU_RATE, _RATE = 7, 101
_SAMPLES = 8  # the mean of the last so many is shown
_GPU_AFTER_NS = 2 * 10**9
_UNNAMED, _UNNAMED_END = (int.from_bytes(part, "little") for part in (b"collecti", b"ve"))
_GLOO_THREAD, _GLOO_LOOKS, _GLOO_NS = b"(pt_gloo_runloop) ", 2, 5 * 10**8
# c10d's ProcessGroup's methods, and the names of at most 16 bytes by which they are shown.
_GROUP_CALLS = {"allreduce": "all_reduce", "allreduce_coalesced": "all_reduce", "reduce": "reduce", "broadcast": "broadcast",
                "allgather": "all_gather", "all_gather_single": "all_gather", "_allgather_base": "all_gather",
                "allgather_coalesced": "all_gather", "all_gather_single_coalesced": "all_gather",
                "allgather_into_tensor_coalesced": "all_gather", "gather": "gather", "scatter": "scatter",
                "reduce_scatter": "reduce_scatter", "reduce_scatter_single": "reduce_scatter",
                "_reduce_scatter_base": "reduce_scatter", "reduce_scatter_single_coalesced": "reduce_scatter",
                "reduce_scatter_tensor_coalesced": "reduce_scatter", "alltoall": "all_to_all", "alltoall_base": "all_to_all",
                "all_to_all_single": "all_to_all", "send": "send", "recv": "recv", "recv_anysource": "recv",
                "barrier": "barrier", "monitored_barrier": "barrier"}
_NO_NUMBER = ("send", "recv", "recv_anysource", "monitored_barrier")  # not all backends count these
_LIGHTNING = ".trainer.connectors.logger_connector.logger_connector"


def _code_of(handler):
    handler = getattr(handler, "func", handler)  # a functools.partial
    return getattr(handler, "__code__", None) or getattr(getattr(type(handler), "__call__", None), "__code__", None)


def _pass_on(error):
    """Raises an error that a signal handler of the program raised while a hook ran: the program waits for it."""
    try:
        import signal
        handlers = {_code_of(signal.getsignal(number)) for number in signal.valid_signals()}
    except Exception:
        return
    trace = error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code in handlers:
            raise error
        trace = trace.tb_next


def _say(what, error):
    _pass_on(error)
    try:
        sys.stderr.write("ddprun: this worker's %s are not observed: %s: %s\n" % (what, type(error).__name__, error))
    except Exception:  # the program may have closed it, and must not see that here
        pass


def _loss_name(names):
    """Returns the name of the training's loss; None: it isn't among `names`."""
    names = [name for name in names if isinstance(name, str) and "loss" in name.lower() and
             not any(other in name.lower() for other in ("val", "test"))]
    return min(names, key=lambda name: (name != "loss", "train" not in name.lower(), len(name), name), default=None)


class _Model:
    """A DistributedDataParallel module, which takes the times of some of its iterations."""

    def __init__(self, module, step):
        self.module, self.since = module, step  # `module` is a weak reference
        self.iteration, self.samples, self.rate = 0, [], 0

    def set_rate(self, module, rate):
        if rate != self.rate:
            self.rate = rate
            module._set_ddp_runtime_logging_sample_rate(rate)

    def parts(self, step, is_long):
        """Returns the values of _PARTS for one step, means of the last samples. Empty: no sample yet, or no model."""
        module = self.module()
        if module is None:
            return []
        said = module.logger._get_ddp_logging_data().ints_map
        iteration, communication = said.get("iteration", 0), said.get("backward_comm_time", 0)
        if iteration > self.iteration and communication > 0:
            self.iteration = iteration
            exposed = max(communication - said["backward_compute_comm_overlap_time"], 0)
            self.samples = self.samples[1 - _SAMPLES:] + [
                (said["forward_compute_time"], said["backward_compute_time"], communication, exposed,
                 said["total_parameter_size_bytes"])]
        repeats = max(1, round(self.iteration / max(1, step - self.since)))  # gradients may be accumulated
        if module.device_type == "cpu":  # one more than the backwards of a step meets each of them in turn
            self.set_rate(module, _CPU_RATE if not is_long else 1 if repeats == 1 else repeats + 1)
        return [repeats * sum(each) // len(self.samples) for each in zip(*self.samples)]


class _Steps:
    """Counts and times the steps of this process that it can see."""

    def __init__(self, clock, agent):
        self.clock = clock
        self.agent = agent  # returns the words of the agent's page; raises OSError
        self.words = None  # the page's words, set at the first step
        self.is_off = False
        self.tries, self.next_try = 0, 0
        self.unsaid = 0  # steps that aren't on the page yet
        self.optimizer = None  # id() of the optimizer whose steps count
        self.of_others = {}  # other optimizers' steps since that one's last, by id()
        self.thread = None  # the thread that calls that optimizer
        self.ended_at = None
        self.loader_ns, self.wait_ns = 0, 0  # time in data loaders and in waits for collectives since the last step
        self.loaded = {}  # samples since then, by id() of the data loader's iterator; 0: it doesn't tell how many
        self.mean_ns = 0.0
        self.looks = {"parts of steps": self._look_at_models, "readings of GPU memory": self._look_at_gpu}
        self.next_gpu_look = 0
        self.calls, self.skipped = 0, 0  # calls of any optimizer's step; skipped steps
        self.framework_logs, self.board_name = False, None  # the loss' name in TensorBoard or wandb
        self.models, self.parts = [], []
        self.without_parts = 0  # the last steps whose parts aren't added yet
        self.when_met = []  # functions to be called once the agent's page is there, each with one that takes its error
        self.begun = None  # returns how many collectives the default process group has begun

    def after_step(self, optimizer, _args, _kwargs):
        if self.is_off:
            return
        self.calls += 1
        try:
            self._after_step(id(optimizer))
        except Exception as error:  # the program must not see it
            self.turn_off(error)

    def _after_step(self, optimizer):
        if optimizer != self.optimizer:
            self.of_others[optimizer] = self.of_others.get(optimizer, 0) + 1
            if self.optimizer is not None and self.of_others[optimizer] < _REST:
                return
            self.optimizer, self.ended_at, self.thread = optimizer, None, get_ident()
        self.of_others.clear()
        now, before = self.clock(), self.ended_at
        loader_ns, self.loader_ns, self.ended_at = self.loader_ns, 0, now
        wait_ns, self.wait_ns = self.wait_ns, 0
        loaded, self.loaded = self.loaded, {}
        self.unsaid += 1
        if self.words is None and not self._meet_agent(now):
            return
        words = self.words
        if self.begun is not None:
            self._count_collectives()
        words[_STEP] += self.unsaid
        self.unsaid = 0
        if len(loaded) == 1:  # of several loaders it isn't known whose samples are the step's
            words[_LOADED] += sum(loaded.values())
        if words[_STEP] % _LOOK == 0 or (before and now - before > _LONG_NS):
            self._look(now)
        if before is None:
            return
        step_ns = now - before
        if self.mean_ns and step_ns > _PAUSE * self.mean_ns:
            self.mean_ns *= 2  # so a program that has become slow has its steps counted again soon
            return
        mean_ns = min(self.mean_ns or step_ns, 4 * step_ns)  # the first step may include compilation
        self.mean_ns = mean_ns + (step_ns - mean_ns) / 16
        words[_BEGUN] += 1
        words[_STEP_NS] += step_ns
        words[_LOADER_NS] += min(loader_ns, step_ns)
        for word in _PARTS[2:4] if wait_ns else ():
            words[word] += min(wait_ns, step_ns)
        self.without_parts = min(self.without_parts + 1, _LOOK)
        if self.parts:
            most = max(step_ns, int(self.mean_ns))  # the parts are means, too: a shorter step would cut them
            for word, part in zip(_PARTS, self.parts):
                words[word] += self.without_parts * (min(part, most) if word != _PARTS[-1] else part)
            self.without_parts = 0
        words[_TIMED] = words[_BEGUN]

    def _look(self, now):
        for what, look in list(self.looks.items()):
            try:
                look(now)
            except Exception as error:
                _say(what, error)
                del self.looks[what]

    def _look_at_models(self, _now):
        models = [model.parts(self.words[_STEP], self.mean_ns > _LONG_NS) for model in self.models]
        self.parts = [sum(each) for each in zip(*filter(None, models))]

    def _look_at_gpu(self, now):
        cuda = sys.modules.get("torch.cuda")
        if now >= self.next_gpu_look and cuda is not None and cuda.is_initialized():
            self.next_gpu_look = now + _GPU_AFTER_NS
            self.words[_GPU_PEAK] = max(self.words[_GPU_PEAK], cuda.max_memory_allocated())

    def _meet_agent(self, now):
        if now < self.next_try:
            return False
        try:
            self.words = self.agent()
            self.words[_SKIPPED] = self.skipped
            for replace, failed in self.when_met:
                try:
                    replace()
                except Exception as error:
                    failed(error)
            return True
        except OSError as error:  # the agent may be stopped
            _pass_on(error)
            self.tries, self.next_try = self.tries + 1, now + _TRY_AFTER_NS
            if self.tries == _TRIES or isinstance(error, (FileNotFoundError, ConnectionError)):
                raise
            return False

    def watch_optimizers(self, module):
        self.after_step.__func__._torchdynamo_disable = True  # torch.compile calls it, and doesn't trace it
        module.register_optimizer_step_post_hook(self.after_step)
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self.turn_off)  # a forked child is not the worker

    def watch_loaders(self, module):
        from collections import deque
        base, clock, of_map = module._BaseDataLoaderIter, self.clock, module._DatasetKind.Map
        plain, plain_next_index, plain_reset = base.__next__, base._next_index, base._reset

        def __next__(iterator):
            is_seen = not self.is_off and self.thread in (None, get_ident())
            begin = clock()
            try:
                batch = plain(iterator)
            finally:
                if is_seen:
                    self.loader_ns += clock() - begin
            sizes = iterator.__dict__.get("_ddprun_sizes")
            size = sizes.popleft() if sizes else 0
            if is_seen:
                self.loaded[id(iterator)] = self.loaded.get(id(iterator), 0) + size
            return batch

        def _next_index(iterator):
            """Remembers how many samples a batch will have: the loader's processes may be at work on several ones."""
            index = plain_next_index(iterator)
            try:
                if iterator._auto_collation and iterator._dataset_kind == of_map and not self.is_off:
                    iterator.__dict__.setdefault("_ddprun_sizes", deque()).append(len(index))
            except Exception as error:  # a sampler of the program's own may give what has no length
                _pass_on(error)
            return index

        def _reset(iterator, *args, **kwargs):
            iterator.__dict__.pop("_ddprun_sizes", None)
            return plain_reset(iterator, *args, **kwargs)

        base.__next__, base._next_index, base._reset = __next__, _next_index, _reset

    def watch_models(self, module):
        import weakref

        def is_made(_before, model, *_args, **_kwargs):
            if model.logger is None:  # its reducer is in Python and takes no times
                return
            self.models = [known for known in self.models if known.module() is not None]
            self.models.append(_Model(weakref.ref(model), self.words[_STEP] if self.words else 0))
            self.models[-1].set_rate(model, _CPU_RATE if model.device_type == "cpu" else _RATE)

        self.call_after(module.DistributedDataParallel, "__init__", "parts of steps", is_made)

    def watch_scalers(self, module):
        def has_stepped(calls, *_args, **_kwargs):
            if self.calls == calls:
                self.skipped += 1
                self.ended_at = None  # the next interval has two steps in it
                if self.words is not None:
                    self.words[_SKIPPED] = self.skipped

        self.call_after(module.GradScaler, "_maybe_opt_step", "skipped steps", has_stepped, lambda: self.calls)

    def watch_distributed(self, module):
        self.try_to(self.watch_collectives, "collectives")(module)
        self.try_to(self.watch_waits, "waits for collectives")(module)

    def watch_collectives(self, module):
        import struct
        steps, group_type, world = self, module.ProcessGroup, module._world

        def begun():
            group = world.default_pg
            return 0 if group is None else group._get_sequence_number_for_group()

        class Watched:
            """A method of c10d's own groups, told as it is looked up. The program gets the plain method: PyTorch's C++ takes
            any other one that it finds in a Python subclass for that class' own, and so would call it without end."""

            def __init__(self, plain, first, second, has_number):
                self.first, self.second, self.has_number, self.bind = first, second, has_number, plain.__get__

            def __get__(self, group, owner=None):
                if type(group) is group_type and steps.begun is not None and not steps.is_off:
                    steps._tell_collective(self.first, self.second, self.has_number and group is world.default_pg)
                return self.bind(group, owner)

        def replace_methods():
            for method, name in _GROUP_CALLS.items():
                if method in vars(group_type):
                    words = struct.unpack("<QQ", name.encode().ljust(16, b"\0"))
                    setattr(group_type, method, Watched(vars(group_type)[method], *words, method not in _NO_NUMBER))

        self.begun = begun
        self._once_met(replace_methods, self._stop_counting)

    def _once_met(self, replace, failed):
        """Calls replace() at the first step: a program without steps pays nothing for it."""
        if self.words is None:
            self.when_met.append((replace, failed))
        else:
            replace()

    def watch_waits(self, module):
        self._time(module.Work, "wait")

    def watch_backend(self, module):
        for name in ("_run_now", "_wait_now"):  # ddprun's own backend waits within a call
            self._time(module.Backend, name)

    def _time(self, owner, name):
        """Has the time of a method's calls counted as a wait for a collective, unless the program is on a GPU: no call waits
        for that."""
        plain, clock = getattr(owner, name), self.clock

        # Its name and its first argument are those of the method: otherwise pybind11 takes it for a subclass' own, and
        # calls it without end.
        def wait(work, *args, **kwargs):
            if self.thread != get_ident() or self.is_off:
                return plain(work, *args, **kwargs)
            begin = clock()
            try:
                return plain(work, *args, **kwargs)
            finally:
                self.wait_ns += clock() - begin

        def replace():
            cuda = sys.modules.get("torch.cuda")
            if cuda is None or not cuda.is_initialized():
                wait._torchdynamo_disable = True
                setattr(owner, name, wait)

        self._once_met(replace, lambda error: _say("waits for collectives", error))

    def _tell_collective(self, first, second, counts):
        """Is called before the collective, for it may never end."""
        try:
            words = self.words
            words[_NAME], words[_NAME_END], words[_COLLECTIVES] = first, second, self.begun() + counts
        except Exception as error:  # a backend may have no such number
            self._stop_counting(error)

    def _count_collectives(self):
        """Counts those that PyTorch's C++ has begun by itself. Their names are not known."""
        try:
            number, words = self.begun(), self.words
            if number != words[_COLLECTIVES]:
                words[_NAME], words[_NAME_END], words[_COLLECTIVES] = _UNNAMED, _UNNAMED_END, number
        except Exception as error:
            self._stop_counting(error)

    def _stop_counting(self, error):
        _say("collectives", error)
        self.begun = None
        self.words[_NAME] = self.words[_NAME_END] = 0

    def watch_lightning(self, module):
        self.call_after(module._LoggerConnector, "log_metrics", "losses",
                        lambda _before, _connector, metrics, *_args, **_kwargs: self._framework_has_logged(metrics))

    def watch_transformers(self, module):
        def has_logged(_before, _handler, _arguments, _state, _control, logs, *_args, **_kwargs):
            self._framework_has_logged({name: logs[name] for name in logs if name == "loss"})

        self.call_after(module.CallbackHandler, "on_log", "losses", has_logged)

    def watch_tensorboard(self, module):
        def has_logged(_before, _writer, tag, scalar_value, *_args, **_kwargs):
            self._board_has_logged({tag: scalar_value})

        self.call_after(module.SummaryWriter, "add_scalar", "losses", has_logged)

    def watch_wandb(self, module):
        self.call_after(module.Run, "log", "losses",
                        lambda _before, _run, data, *_args, **_kwargs: self._board_has_logged(data))

    def _framework_has_logged(self, metrics):
        self.framework_logs = True
        self._log(metrics, _loss_name(metrics))

    def _board_has_logged(self, metrics):
        """Logs the loss unless a framework logs it. The best name so far counts: each call may bring another one."""
        if not self.framework_logs:
            name = self.board_name = _loss_name([*metrics, self.board_name])
            self._log(metrics, name if name in metrics else None)

    def _log(self, metrics, name):
        import struct
        if name is not None and hasattr(metrics[name], "__float__") and self.words is not None:
            loss = metrics[name]
            if hasattr(loss, "detach"):  # else PyTorch warns the program
                loss = loss.detach()
            self.words[_LOSS], = struct.unpack("Q", struct.pack("d", float(loss)))
            self.words[_REPORTS] += 1

    def call_after(self, owner, name, what, then, before=lambda: None):
        """Calls then(before(), arguments) after each call of a method. If it fails, prints a line and stops `what`."""
        import functools
        plain, is_off = getattr(owner, name), False

        @functools.wraps(plain)
        def call(*args, **kwargs):
            nonlocal is_off
            known = before()
            result = plain(*args, **kwargs)
            if not is_off and not self.is_off:
                try:
                    then(known, *args, **kwargs)
                except Exception as error:
                    _say(what, error)
                    is_off = True
            return result

        setattr(owner, name, call)

    def try_to(self, watch, what):
        """Returns a function like `watch`. If it fails, it prints a line and only `what` is not observed."""
        def watch_it(module):
            try:
                watch(module)
            except Exception as error:
                _say(what, error)
        return watch_it

    def turn_off(self, error=None):
        if error is not None and not self.is_off:
            _say("steps", error)
        self.is_off = True


def _framework():
    """Returns a text like "PyTorch 2.15.0, gloo, 2 ranks"."""
    text, distributed = "PyTorch %s, " % sys.modules["torch"].__version__, sys.modules.get("torch.distributed")
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return text + "no process group"
    backend, ranks = distributed.get_backend(), distributed.get_world_size()
    if backend == "undefined":  # there is one backend for each kind of device
        backend = distributed.get_backend_config()
    return text + "%s, %d rank%s" % (backend, ranks, "" if ranks == 1 else "s")


def _framework_or_none():
    """Returns the hello's field "framework". If that fails, prints a line and returns none."""
    try:
        return {"framework": _framework()}
    except Exception as error:
        _say("names of framework and backend", error)
        return {}


class _Agent:
    """The agent that the environment names at the program's start."""

    def __init__(self):
        names = os.environ
        self.path, self.round = names.get("DDPRUN_AGENT_SOCKET"), names.get("DDPRUN_ROUND")
        self.local_rank = names.get("DDPRUN_LOCAL_RANK") or names.get("LOCAL_RANK")

    def is_there(self):
        return bool(self.path and self.round and self.local_rank)

    def words(self):
        """Connects to the agent and returns the words of its page. Raises OSError."""
        import json
        import mmap
        import socket

        # A spare's worker starts with round 0 and gets its round later.
        round_number = os.environ.get("DDPRUN_ROUND", "0") if self.round == "0" else self.round
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as agent:
            agent.settimeout(1)
            agent.connect(self.path)
            hello = {"type": "hello", "version": 1, "round": int(round_number), "local_rank": int(self.local_rank),
                     "observes": True, **_framework_or_none()}
            agent.sendall(json.dumps(hello).encode() + b"\n")
            answer, pages, _, _ = socket.recv_fds(agent, 4096, 1)
            if not pages:
                raise ConnectionError("the agent said no: %s" % json.loads(answer).get("reason"))
            try:
                memory = mmap.mmap(pages[0], _PAGE_BYTES)
            finally:
                os.close(pages[0])
        if memory[:8] != _MAGIC or memory[8] != 1:
            raise ConnectionError("the agent's page is of another version")
        return memoryview(memory).cast("B").cast("Q")


class _Loader:
    """Loads a module by its own loader, then calls `watch` with it."""

    def __init__(self, own, watch, failed):
        self.own, self.watch, self.failed = own, watch, failed

    def __getattr__(self, name):
        return getattr(self.own, name)

    def create_module(self, spec):
        return self.own.create_module(spec)

    def exec_module(self, module):
        module.__spec__.loader = module.__loader__ = self.own
        self.own.exec_module(module)
        try:
            self.watch(module)
        except Exception as error:  # e.g. a PyTorch without what `watch` needs
            self.failed(error)


class _Finder:
    """Calls `watchers`[name](module) once a module of that name is imported."""

    def __init__(self, watchers, failed):
        self.watchers, self.failed = watchers, failed

    def find_spec(self, name, path=None, target=None):
        watch = self.watchers.pop(name, None)
        if watch is None:
            return None
        try:
            import importlib.util
            spec = importlib.util.find_spec(name)
            if hasattr(getattr(spec, "loader", None), "exec_module"):
                spec.loader = _Loader(spec.loader, watch, self.failed)
            return spec
        except Exception as error:  # the next finder meets the same error
            _pass_on(error)
            return None


def _gloo_states():
    """Those of gloo's threads, as in /proc/PID/stat."""
    found = []
    try:
        threads = os.listdir("/proc/self/task")
    except OSError:  # no descriptor is left
        return found
    for thread in threads:
        try:
            with open("/proc/self/task/%s/stat" % thread, "rb") as file:
                _, is_gloo, rest = file.read().partition(_GLOO_THREAD)
        except OSError:  # it has ended
            continue
        if is_gloo:
            found.append(rest[:1])
    return found


def _await_gloo():
    """At exit. A thread of gloo that drops a tensor wants the GIL. While Python ends that aborts the process (PyTorch 2.15,
    Python before 3.14). A thread that waits for the GIL is not seen asleep, for to read its state gives the GIL away."""
    from time import sleep
    if "torch.distributed" not in sys.modules:
        return
    states, idle, until = _gloo_states(), 0, monotonic_ns() + _GLOO_NS
    while states and idle < _GLOO_LOOKS and monotonic_ns() < until:
        sleep(0.001)  # whoever waits for the GIL has it now
        states = _gloo_states()
        idle = idle + 1 if set(states) <= {b"S"} else 0


def _begin():
    agent = _Agent()
    if not agent.is_there():
        return
    import atexit
    atexit.register(_await_gloo)
    steps = _Steps(monotonic_ns, agent.words)
    watchers = {"torch.optim.optimizer": steps.watch_optimizers, "torch.utils.data.dataloader": steps.watch_loaders,
                "torch.nn.parallel.distributed": steps.try_to(steps.watch_models, "parts of steps"),
                "torch.distributed.distributed_c10d": steps.watch_distributed,
                "ddprun.torch.backend": steps.try_to(steps.watch_backend, "waits for collectives"),
                "torch.amp.grad_scaler": steps.try_to(steps.watch_scalers, "skipped steps")}
    for name, watch in (("transformers.trainer_callback", steps.watch_transformers),
                        ("lightning.pytorch" + _LIGHTNING, steps.watch_lightning),
                        ("pytorch_lightning" + _LIGHTNING, steps.watch_lightning),
                        ("torch.utils.tensorboard.writer", steps.watch_tensorboard),
                        ("tensorboardX.writer", steps.watch_tensorboard), ("wandb.sdk.wandb_run", steps.watch_wandb)):
        watchers[name] = steps.try_to(watch, "losses")
    for name in [name for name in watchers if name in sys.modules]:  # --preload has imported these already
        try:
            watchers.pop(name)(sys.modules[name])
        except Exception as error:
            steps.turn_off(error)
    if watchers:
        sys.meta_path.insert(0, _Finder(watchers, steps.turn_off))


def _leave_path():
    """Restores the user's PYTHONPATH, because child processes of the program are not to be observed."""
    folder = os.path.dirname(os.path.abspath(__file__))
    sys.path[:] = [entry for entry in sys.path if entry != folder]
    users = [entry for entry in os.environ.get("PYTHONPATH", "").split(os.pathsep) if entry != folder]
    if users:
        os.environ["PYTHONPATH"] = os.pathsep.join(users)
    else:
        os.environ.pop("PYTHONPATH", None)


def _import_users_own():
    ours = sys.modules.pop(__name__)
    try:
        import sitecustomize  # noqa: F401
    except ImportError as error:
        if error.name != __name__:
            raise
    finally:
        sys.modules.setdefault(__name__, ours)


try:
    from time import monotonic_ns
    from _thread import get_ident
    _begin()
finally:
    if __name__ == "sitecustomize":
        _leave_path()
        _import_users_own()
