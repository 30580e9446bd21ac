# SPDX-License-Identifier: Apache-2.0
"""Runs as a worker of ddprun.launch(): python call.py FOLDER. The function's call and its result are files there."""
from __future__ import annotations

import sys

if __name__ == "__main__":
    sys.path.pop(0)  # this package's folder: its modules must not be found as top-level ones

import multiprocessing.spawn
import os
import pickle
import traceback
from typing import Any


def main(folder: str) -> None:
    try:
        _write(folder, "result", _pickled(_call(folder)))
    except SystemExit as error:
        if error.code not in (None, 0):
            _record_failure(folder, error)
        raise
    except Exception as error:
        _record_failure(folder, error)
        raise


def _call(folder: str) -> Any:
    with open(os.path.join(folder, "prepare"), "rb") as file:
        preparation = pickle.load(file)
    sys.path[:] = preparation["sys_path"]
    from ddprun import launching
    launching.is_preparing = True
    multiprocessing.spawn.prepare(preparation)
    launching.is_preparing = False
    with open(os.path.join(folder, "call"), "rb") as file:
        function, args, kwargs = pickle.load(file)
    return function(*args, **kwargs)


def _record_failure(folder: str, error: BaseException) -> None:
    # Leaves out the frames of this file, which help nobody.
    frames = error.__traceback__
    while frames is not None and frames.tb_frame.f_code.co_filename == __file__ and frames.tb_next is not None:
        frames = frames.tb_next
    text = "".join(traceback.format_exception(type(error), error, frames))
    try:
        cause = _pickled(error)
    except Exception:
        cause = b""
    try:
        _write(folder, "failure", pickle.dumps((text, cause)))
    except OSError as problem:  # e.g. a full disk
        print("ddprun: can't tell the caller of this failure: %s" % problem, file=sys.stderr)


def _pickled(value: Any) -> bytes:
    try:
        import cloudpickle as pickler
    except ImportError:
        pickler = pickle
    pickled: bytes = pickler.dumps(value)
    return pickled


def _write(folder: str, kind: str, content: bytes) -> None:
    """Writes the whole file or none, because the worker may be killed meanwhile."""
    path = os.path.join(folder, "%s-%s-%s" % (kind, os.environ["DDPRUN_ROUND"], os.environ["RANK"]))
    with open(path + ".new", "wb") as file:
        file.write(content)
    os.replace(path + ".new", path)


if __name__ == "__main__":
    main(sys.argv[1])
