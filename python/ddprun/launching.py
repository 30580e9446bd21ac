# SPDX-License-Identifier: Apache-2.0
"""Jobs from a notebook or a script: ddprun.launch()."""
from __future__ import annotations

import ctypes
import multiprocessing.spawn
import os
import pickle
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Sequence
from typing import IO, Any, Callable, TextIO

from . import program

_PR_SET_PDEATHSIG = 1


class LaunchError(RuntimeError):
    """The job failed. `exit_code`: ddprun's (docs/exit-codes.md)."""

    def __init__(self, message: str, exit_code: int) -> None:
        super().__init__(message)
        self.exit_code = exit_code


class WorkerError(LaunchError):
    """The function failed in a worker. `rank`: whose failure was the first; `traceback`: that worker's."""

    def __init__(self, rank: int, traceback: str, exit_code: int) -> None:
        super().__init__("in rank %d:\n%s" % (rank, traceback.rstrip()), exit_code)
        self.rank = rank
        self.traceback = traceback


def launch(function: Callable[..., Any], *args: Any, nproc_per_node: int | str = "auto", flags: Sequence[str] = (),
           **kwargs: Any) -> list[Any]:
    """Runs function(*args, **kwargs) in `nproc_per_node` workers on this machine. Its results, by rank.

    `flags`: more of ddprun's, as "--max-restarts=3". The function and its arguments are pickled: by
    cloudpickle where that is installed; else the function must be importable by its name. The
    workers' output is printed here. Ctrl-C stops the job.

    Throws WorkerError if the function failed, with that exception as its cause where it can be
    pickled; LaunchError if the job failed otherwise; TypeError if something can't be pickled."""
    results = call(function, args, kwargs, ["--standalone", "--nproc-per-node=%s" % nproc_per_node, *flags])
    return [results[rank] for rank in sorted(results)]


def call(function: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any],
         flags: Sequence[str]) -> dict[int, Any]:
    """The same with all of ddprun's flags. The results of this node's workers, by rank."""
    with tempfile.TemporaryDirectory(prefix="ddprun-launch-") as folder:
        # As multiprocessing's spawned processes: sys.path, sys.argv, the directory, the main module.
        preparation = multiprocessing.spawn.get_preparation_data("ddprun")
        preparation.pop("authkey", None)
        with open(os.path.join(folder, "prepare"), "wb") as file:
            pickle.dump(preparation, file)
        with open(os.path.join(folder, "call"), "wb") as file:
            file.write(_pickled_call(function, args, kwargs))
        worker = os.path.join(os.path.dirname(os.path.abspath(__file__)), "call.py")
        status = run([*flags, "--no-python", sys.executable, "-u", worker, folder])
        results, failures = _outcomes(folder)
    if status == 0:
        return results
    if failures:
        _, rank, traceback, pickled = min(failures, key=lambda failure: failure[0])
        raise WorkerError(rank, traceback, status) from _unpickled(pickled)
    raise LaunchError("ddprun ended with exit code %d" % status, status)


def run(arguments: Sequence[str]) -> int:
    """Runs ddprun with these arguments. Its exit code; minus the signal that killed it.

    Its output goes to sys.stdout and sys.stderr, in a notebook, too. It ends with this process."""
    pumps = [] if _are_ours(sys.stdout, sys.stderr) else [sys.stdout, sys.stderr]
    libc = ctypes.CDLL(None)

    def end_with_parent() -> None:
        libc.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)

    pipe = subprocess.PIPE if pumps else None
    process = subprocess.Popen([program.path(), *arguments], stdin=subprocess.DEVNULL, stdout=pipe, stderr=pipe,
                               env=program.environment(), preexec_fn=end_with_parent)
    threads = [threading.Thread(target=_pump, args=ends, daemon=True)
               for ends in zip((process.stdout, process.stderr), pumps)]
    for thread in threads:
        thread.start()
    interrupted = False
    while True:
        try:
            process.wait()
            for thread in threads:
                thread.join()
            break
        except KeyboardInterrupt:
            interrupted = True
            process.send_signal(signal.SIGINT)
        except BaseException:
            process.terminate()
            process.wait()
            raise
    if interrupted:
        raise KeyboardInterrupt
    return process.returncode


def _are_ours(out: TextIO, err: TextIO) -> bool:
    """Whether they are what a child process prints to."""
    try:
        return out.fileno() == 1 and err.fileno() == 2
    except (OSError, ValueError, AttributeError):
        return False


def _pump(source: IO[bytes], sink: TextIO) -> None:
    for line in source:
        sink.write(line.decode(errors="replace"))
        sink.flush()


def _pickled_call(function: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any]) -> bytes:
    try:
        import cloudpickle as pickler
    except ImportError:
        pickler = pickle
        is_typed = not hasattr(sys.modules["__main__"], "__file__")
        if is_typed and getattr(function, "__module__", None) == "__main__":
            raise TypeError("%r is defined in a notebook or a shell, where workers can't import it: "
                            "pip install cloudpickle" % function) from None
    try:
        pickled: bytes = pickler.dumps((function, tuple(args), kwargs))
        return pickled
    except Exception as error:
        hint = "" if pickler is not pickle else "; cloudpickle takes more: pip install cloudpickle"
        raise TypeError("can't send %r and its arguments to workers: %s%s" % (function, error, hint)) from error


_Failure = tuple[int, int, str, bytes]


def _outcomes(folder: str) -> tuple[dict[int, Any], list[_Failure]]:
    results: dict[int, Any] = {}
    failures: list[_Failure] = []
    for name in os.listdir(folder):
        kind, _, rank = name.partition("-")
        if not rank.isdigit():
            continue
        with open(os.path.join(folder, name), "rb") as file:
            if kind == "result":
                results[int(rank)] = pickle.load(file)
            elif kind == "failure":
                when, traceback, pickled = pickle.load(file)
                failures.append((when, int(rank), traceback, pickled))
    return results, failures


def _unpickled(pickled: bytes) -> BaseException | None:
    try:
        error = pickle.loads(pickled)
    except Exception:
        return None
    return error if isinstance(error, BaseException) else None
