# SPDX-License-Identifier: Apache-2.0
"""Tells this node's agent how far a plain PyTorch program is (docs/observe.md).

ddprun puts the folder of this file first into a worker's PYTHONPATH, so Python imports it at its start. It takes the
folder out again, imports the user's own sitecustomize, and waits for PyTorch's optimizers and data loaders. A failure
here is one line on stderr, and the program goes on without it."""
import os
import sys

_PAGE_BYTES, _MAGIC = 4096, b"DDPRUNPG"
# Words of the agent's page (common/progress_page.h): steps seen, those whose time is or was added, the sums in ns.
_STEP, _BEGUN, _TIMED, _STEP_NS, _LOADER_NS = range(108, 113)
_PAUSE = 8  # an interval of so many mean steps is no step: an evaluation, a checkpoint


class _Steps:
    """The steps of this process, as far as they are seen."""

    def __init__(self, clock):
        self.clock = clock
        self.words = None  # the agent's, once there was a step
        self.is_off = False
        self.optimizer = None  # id() of the one whose steps count
        self.of_others = 0  # steps since its last one
        self.ended_at = None
        self.loader_ns = 0  # since the last step
        self.mean_ns = 0.0

    def after_step(self, optimizer, _args, _kwargs):
        if self.is_off:
            return
        try:
            self._after_step(id(optimizer))
        except Exception as error:  # never the program's
            self.turn_off(error)

    def _after_step(self, optimizer):
        if optimizer != self.optimizer:
            self.of_others += 1
            if self.optimizer is not None and self.of_others < 64:
                return
            self.optimizer, self.ended_at = optimizer, None
        self.of_others = 0
        if self.words is None:
            self.words = _agents_words()
        words, now, before = self.words, self.clock(), self.ended_at
        loader_ns, self.loader_ns, self.ended_at = self.loader_ns, 0, now
        words[_STEP] += 1
        if before is None:
            return
        step_ns = now - before
        if self.mean_ns and step_ns > _PAUSE * self.mean_ns:
            self.mean_ns *= 2  # so that a program that has become slow is believed after a few steps
            return
        self.mean_ns += (step_ns - self.mean_ns) / 16 if self.mean_ns else step_ns
        words[_BEGUN] += 1
        words[_STEP_NS] += step_ns
        words[_LOADER_NS] += min(loader_ns, step_ns)
        words[_TIMED] = words[_BEGUN]

    def watch_optimizers(self, module):
        self.after_step.__func__._torchdynamo_disable = True  # a compiled step calls it, and doesn't trace it
        module.register_optimizer_step_post_hook(self.after_step)

    def watch_loaders(self, module):
        plain, clock = module._BaseDataLoaderIter.__next__, self.clock

        def __next__(iterator):
            begin = clock()
            try:
                return plain(iterator)
            finally:
                self.loader_ns += clock() - begin

        module._BaseDataLoaderIter.__next__ = __next__

    def turn_off(self, error):
        self.is_off = True
        print("ddprun: this worker's steps are not observed: %s" % error, file=sys.stderr)


def _agents_words():
    import json
    import mmap
    import socket

    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as agent:
        agent.settimeout(2)
        agent.connect(os.environ["DDPRUN_AGENT_SOCKET"])
        local_rank = os.environ.get("DDPRUN_LOCAL_RANK") or os.environ["LOCAL_RANK"]
        hello = {"type": "hello", "version": 1, "round": int(os.environ["DDPRUN_ROUND"]),
                 "local_rank": int(local_rank), "observes": True}
        agent.sendall(json.dumps(hello).encode() + b"\n")
        answer, pages, _, _ = socket.recv_fds(agent, 4096, 1)
        if not pages:
            raise OSError("the agent gave no page: %s" % answer.decode(errors="replace").strip())
        try:
            memory = mmap.mmap(pages[0], _PAGE_BYTES)
        finally:
            os.close(pages[0])
    if memory[:8] != _MAGIC or memory[8] != 1:
        raise OSError("the agent's page is of another version")
    return memoryview(memory).cast("B").cast("Q")


class _Finder:
    """Calls `watchers`[name](module) once a module of that name is imported."""

    def __init__(self, watchers, failed):
        self.watchers, self.failed = watchers, failed

    def find_spec(self, name, path=None, target=None):
        watch = self.watchers.pop(name, None)
        if watch is None:
            return None
        if not self.watchers:
            sys.meta_path.remove(self)
        import importlib.util
        spec = importlib.util.find_spec(name)
        if spec is None or spec.loader is None:
            return spec
        plain = spec.loader.exec_module

        def exec_module(module):
            plain(module)
            try:
                watch(module)
            except Exception as error:  # a PyTorch without it: its steps are not seen
                self.failed(error)

        spec.loader.exec_module = exec_module
        return spec


def _begin():
    from time import monotonic_ns
    steps = _Steps(monotonic_ns)
    watchers = {"torch.optim.optimizer": steps.watch_optimizers, "torch.utils.data.dataloader": steps.watch_loaders}
    for name in [name for name in watchers if name in sys.modules]:  # of --preload
        try:
            watchers.pop(name)(sys.modules[name])
        except Exception as error:
            steps.turn_off(error)
    if watchers:
        sys.meta_path.insert(0, _Finder(watchers, steps.turn_off))


def _leave_path():
    """Children of the program are not the worker. They find PYTHONPATH as the user set it."""
    folder = os.path.dirname(os.path.abspath(__file__))
    sys.path[:] = [entry for entry in sys.path if entry != folder]
    rest = os.environ.get("PYTHONPATH", "").split(os.pathsep, 1)[1:]
    if rest:
        os.environ["PYTHONPATH"] = rest[0]
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


_begin()
if __name__ == "sitecustomize":
    _leave_path()
    _import_users_own()
