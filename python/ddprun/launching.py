# SPDX-License-Identifier: Apache-2.0
"""Jobs from a notebook or a script: ddprun.launch()."""
from __future__ import annotations

import codecs
import ctypes
import json
import multiprocessing
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
is_preparing = False  # whether a worker is importing the caller's main module


class LaunchError(RuntimeError):
    """The job failed. `exit_code`: ddprun's exit code (docs/exit-codes.md)."""

    def __init__(self, message: str, exit_code: int) -> None:
        super().__init__(message, exit_code)
        self.exit_code = exit_code

    def __str__(self) -> str:
        return str(self.args[0])


class WorkerError(LaunchError):
    """The function failed in a worker. `rank`: the rank that failed first; `traceback`: that worker's."""

    def __init__(self, rank: int, traceback: str, exit_code: int) -> None:
        super().__init__("in rank %d:\n%s" % (rank, traceback.rstrip()), exit_code)
        self.rank = rank
        self.traceback = traceback

    def __reduce__(self) -> Any:
        return WorkerError, (self.rank, self.traceback, self.exit_code)


def launch(function: Callable[..., Any], /, *args: Any, nproc_per_node: int | str = "auto", flags: Sequence[str] = (),
           **kwargs: Any) -> list[Any]:
    """Runs function(*args, **kwargs) in `nproc_per_node` workers on this machine. Returns its results, by rank.

    `flags`: more flags of ddprun, e.g. ["--max-restarts=3"]. The function and its arguments are pickled by
    cloudpickle if it is installed; otherwise the function must be importable by its name. The
    workers' output is printed here. Ctrl-C stops the job.

    Throws WorkerError if the function failed, with that exception as its cause if it can be
    pickled. Throws LaunchError if the job failed otherwise, TypeError if something can't be pickled."""
    if isinstance(flags, str):
        raise TypeError("flags wants a list, as [%r]" % flags)
    results = call(function, args, kwargs, ["--standalone", "--nproc-per-node=%s" % nproc_per_node, *flags])
    return [results[rank] for rank in sorted(results)]


def call(function: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any],
         flags: Sequence[str]) -> dict[int, Any]:
    """Like launch(), but `flags` are all flags of ddprun. Returns the results of this node's workers, by rank."""
    if is_preparing:
        raise RuntimeError("a worker has imported the main module, which launches again: put the call under "
                           "if __name__ == '__main__':")
    with tempfile.TemporaryDirectory(prefix="ddprun-launch-") as folder:
        preparation, pickled = _preparation_and_call(function, args, kwargs)
        with open(os.path.join(folder, "prepare"), "wb") as file:
            pickle.dump(preparation, file)
        with open(os.path.join(folder, "call"), "wb") as file:
            file.write(pickled)
        worker = os.path.join(os.path.dirname(os.path.abspath(__file__)), "call.py")
        python = [sys.executable, *subprocess._args_from_interpreter_flags(), "-u"]  # type: ignore[attr-defined]
        status = run(["--report=" + os.path.join(folder, "report"), *flags, "--no-python", *python, worker, folder],
                     stdin=subprocess.DEVNULL)
        return _outcome(folder, status)


def run(arguments: Sequence[str], stdin: int | None = None) -> int:
    """Runs ddprun with these arguments. Returns its exit code, or minus the signal that killed it.

    ddprun's output goes to sys.stdout and sys.stderr, in a notebook, too. It ends with this process."""
    pumps = [] if _are_ours(sys.stdout, sys.stderr) else [sys.stdout, sys.stderr]
    libc = ctypes.CDLL(None)

    def end_with_parent() -> None:
        libc.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)

    for ours in (sys.stdout, sys.stderr):
        if ours is not None and not getattr(ours, "closed", False):
            ours.flush()
    pipe = subprocess.PIPE if pumps else None
    process = subprocess.Popen([program.path(), *arguments], stdin=stdin, stdout=pipe, stderr=pipe,
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
            process.send_signal(signal.SIGINT)  # a terminal sends one, too; ddprun counts both as one
        except BaseException:
            process.terminate()
            process.wait()
            raise
    if interrupted:
        raise KeyboardInterrupt
    return process.returncode


def _are_ours(out: TextIO | None, err: TextIO | None) -> bool:
    """Returns whether these streams are descriptors 1 and 2, to which a child process prints."""
    try:
        return out is not None and err is not None and out.fileno() == 1 and err.fileno() == 2
    except (OSError, ValueError, AttributeError):
        return False


def _pump(source: IO[bytes], sink: TextIO | None) -> None:
    """Copies `source` to `sink`. Reads on even if `sink` fails, because a full pipe would block the job."""
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    encoding = getattr(sink, "encoding", None) or "utf-8"
    while True:
        data = os.read(source.fileno(), 1 << 16)
        text = decoder.decode(data, final=not data)
        try:
            if sink is not None:
                sink.write(text.encode(encoding, "replace").decode(encoding))
                sink.flush()
        except (OSError, ValueError):
            sink = None
        if not data:
            return


def _preparation_and_call(function: Callable[..., Any], args: Sequence[Any],
                          kwargs: dict[str, Any]) -> tuple[dict[str, Any], bytes]:
    # Workers get sys.path, sys.argv, the directory and the main module like multiprocessing's spawned processes.
    method = multiprocessing.get_start_method(allow_none=True)
    preparation = multiprocessing.spawn.get_preparation_data("ddprun")
    multiprocessing.set_start_method(method, force=True)  # get_preparation_data() may have set it
    for name in ("authkey", "start_method"):
        preparation.pop(name, None)
    path = preparation.get("init_main_from_path")
    if path is not None and not os.path.exists(path):  # e.g. "<stdin>"
        del preparation["init_main_from_path"]
    try:
        import cloudpickle as pickler
        # cloudpickle pickles the main module's functions whole, so workers needn't import it.
        preparation.pop("init_main_from_path", None)
        preparation.pop("init_main_from_name", None)
    except ImportError:
        pickler = pickle
        has_main = "init_main_from_path" in preparation or "init_main_from_name" in preparation
        if not has_main and getattr(function, "__module__", None) == "__main__":
            raise TypeError("%r is defined in a notebook or a shell, or in a main module that workers can't import: "
                            "pip install cloudpickle" % function) from None
    try:
        return preparation, pickler.dumps((function, tuple(args), kwargs))
    except Exception as error:
        hint = "" if pickler is not pickle else "; cloudpickle takes more: pip install cloudpickle"
        raise TypeError("can't send %r and its arguments to workers: %s%s" % (function, error, hint)) from error


def _outcome(folder: str, status: int) -> dict[int, Any]:
    """Returns the results by rank, from the last round's files and ddprun's report. Throws LaunchError."""
    try:
        with open(os.path.join(folder, "report"), encoding="utf-8") as file:
            report = json.load(file)
    except (OSError, ValueError):
        report = {}
    rounds = (report.get("written_by") or {}).get("rounds") or [{}]
    last = rounds[-1].get("round", 1)
    if status != 0:
        first = (report.get("first_failure") or {}).get("global_rank")
        failure = os.path.join(folder, "failure-%d-%s" % (last, first))
        if isinstance(first, int) and os.path.exists(failure):
            with open(failure, "rb") as pickled:
                traceback, cause = pickle.load(pickled)
            raise WorkerError(first, traceback, status) from _unpickled(cause)
        raise LaunchError(report.get("reason") or "ddprun ended with exit code %d" % status, status)
    results: dict[int, Any] = {}
    for name in os.listdir(folder):
        kind, _, rank = name.rpartition("-")
        if kind == "result-%d" % last:
            with open(os.path.join(folder, name), "rb") as pickled:
                try:
                    results[int(rank)] = pickle.load(pickled)
                except Exception as error:
                    raise LaunchError("rank %s returned what can't be unpickled here: %s" % (rank, error), 0) from error
    first = rounds[-1].get("first_global_rank", 0)
    num_workers = (report.get("written_by") or {}).get("num_workers", len(results))
    missing = sorted(set(range(first, first + num_workers)) - set(results))
    if missing:
        raise LaunchError("these ranks ended without a result: %s" % ", ".join(map(str, missing)), 0)
    return results


def _unpickled(pickled: bytes) -> BaseException | None:
    try:
        error = pickle.loads(pickled)
    except Exception:
        return None
    return error if isinstance(error, BaseException) else None
