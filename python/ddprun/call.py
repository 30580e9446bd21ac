# SPDX-License-Identifier: Apache-2.0
"""A worker of ddprun.launch(): python call.py FOLDER. Its call and its result are files there."""
from __future__ import annotations

import sys

if __name__ == "__main__":
    sys.path.pop(0)  # this package's own folder: its modules' names are not for all

import multiprocessing.spawn
import os
import pickle
import time
import traceback
from typing import Any


def main(folder: str) -> None:
    rank = os.environ["RANK"]
    with open(os.path.join(folder, "prepare"), "rb") as file:
        multiprocessing.spawn.prepare(pickle.load(file))
    try:
        with open(os.path.join(folder, "call"), "rb") as file:
            function, args, kwargs = pickle.load(file)
        result = _pickled(function(*args, **kwargs))
    except Exception as error:
        # The frames of this file tell nobody anything.
        text = "".join(traceback.format_exception(type(error), error, error.__traceback__ and error.__traceback__.tb_next))
        try:
            cause = _pickled(error)
        except Exception:
            cause = b""
        _write(folder, "failure-" + rank, pickle.dumps((time.time_ns(), text, cause)))
        raise
    _write(folder, "result-" + rank, result)


def _pickled(value: Any) -> bytes:
    try:
        import cloudpickle as pickler
    except ImportError:
        pickler = pickle
    pickled: bytes = pickler.dumps(value)
    return pickled


def _write(folder: str, name: str, content: bytes) -> None:
    """The whole file, or none: the worker may be killed meanwhile."""
    path = os.path.join(folder, name)
    with open(path + ".new", "wb") as file:
        file.write(content)
    os.replace(path + ".new", path)


if __name__ == "__main__":
    main(sys.argv[1])
