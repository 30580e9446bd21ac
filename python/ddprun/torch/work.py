# SPDX-License-Identifier: Apache-2.0
"""Operations under way, as torch.distributed sees them."""
from __future__ import annotations

import queue
import threading
import time
from collections.abc import Sequence
from typing import Any, Callable, Optional

import torch
from torch.distributed import DistBackendError
from torch.distributed import Work as _TorchWork

from . import _c


def backend_error(error: _c.Error) -> DistBackendError:
    """Returns PyTorch's error. A timeout's text has the word that programs look for in gloo's texts."""
    return DistBackendError(("at the timeout of the call: %s" if error.status == _c.TIMEOUT else "%s") % error)


class Completer:
    """Ends works in their order, in a thread of its own, which the first work starts. Any thread may call it.

    `is_for_one`: the thread ends after its first work."""

    def __init__(self, is_for_one: bool = False) -> None:
        self._is_for_one = is_for_one
        self._works: queue.SimpleQueue[Optional[Work]] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._thread: Optional[threading.Thread] = None

    def add(self, work: Work) -> None:
        with self._lock:
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, args=(self._works,), name="ddprun-future", daemon=True)
                self._thread.start()
        self._works.put(work)
        if self._is_for_one:
            self._works.put(None)

    def stop(self) -> None:
        """Returns when all works have ended."""
        if self._thread is not None:
            self._works.put(None)
            self._thread.join()

    @staticmethod
    def _run(works: queue.SimpleQueue[Optional[Work]]) -> None:
        while True:
            work = works.get()
            if work is None:
                return
            work.end()


class Inside:
    """The synchronous calls under way, for whoever destroys their communicator. No lock, for each call uses it."""

    def __init__(self) -> None:
        self._calls: list[int] = []  # their threads
        self._one_ended: Optional[threading.Event] = None  # somebody waits for it

    def begin(self) -> None:
        self._calls.append(threading.get_ident())

    def end(self) -> None:
        self._calls.remove(threading.get_ident())
        if self._one_ended is not None:
            self._one_ended.set()

    def is_busy(self) -> bool:
        """Returns whether another thread is in a call. This one has left its own: a handler of a signal runs then."""
        own = threading.get_ident()
        return any(thread != own for thread in self._calls)

    def await_end(self, seconds: float) -> bool:
        """Waits until the other threads' calls have ended. Returns whether they have. None may begin meanwhile."""
        deadline = time.monotonic() + seconds
        self._one_ended = threading.Event()
        while self.is_busy():
            if not self._one_ended.wait(deadline - time.monotonic()):
                return not self.is_busy()
            self._one_ended.clear()
        return True


class Work(_TorchWork):  # type: ignore[misc]  # PyTorch may have no types here
    """Waits for the operations `natives`. The thread that sees their end first calls `finish`, once.

    Keeps alive `tensors`, the results, and `kept`, which the operations use. `source`: the sender of a message."""

    # The values of a work that has already ended. Many have, and setting them for each object takes time.
    _natives: Sequence[_c.Work] = ()
    _finish: Optional[Callable[[], object]] = None
    _kept: Any = None
    _completer: Optional[Completer] = None
    _source: Optional[Any] = None
    _error: Optional[BaseException] = None
    _future: Optional[Any] = None
    _end_of_future: Optional[Any] = None  # its completion completes the future
    _ended: Optional[threading.Event] = None
    _is_over = True
    _lock = threading.RLock()

    def __init__(self, natives: Sequence[_c.Work], tensors: Any, finish: Optional[Callable[[], object]] = None,
                 kept: Any = None, completer: Optional[Completer] = None, source: Optional[Any] = None) -> None:
        super().__init__()
        self.tensors = tensors
        if natives:
            self._natives, self._finish, self._kept, self._completer = natives, finish, kept, completer
            # A handler of a signal may destroy the group, and so end this work, while _close() finishes it.
            self._source, self._lock, self._is_over = source, threading.RLock(), False

    def wait(self, timeout: Any = None) -> bool:
        if timeout and timeout.total_seconds() > 0 and not self._is_over:
            if not self._end_in_background().wait(timeout.total_seconds()):
                raise DistBackendError("the operation has not ended within %s" % timeout)
        self.end()
        if self._error:
            raise self._error
        return True

    def end(self) -> None:
        """Returns when the operation has ended, with or without an error."""
        if self._is_over:
            return
        try:
            for native in self._natives:
                native.wait()
        except _c.Error as error:
            self._close(backend_error(error))
        else:
            self._close(None)

    def _close(self, error: Optional[BaseException]) -> None:
        with self._lock:
            if self._is_over:
                return
            finish, self._finish = self._finish, None
            try:
                if finish and not error:
                    finish()
            except Exception as failure:
                error = failure
            self._error = error
            self._natives, self._finish, self._kept = (), None, None
            self._is_over = True
        if self._ended:
            self._ended.set()
        if self._end_of_future:
            self._end_of_future.set_result(None)

    def _end_in_background(self) -> threading.Event:
        with self._lock:
            if self._ended is None:
                self._ended = threading.Event()
                assert self._completer is not None
                self._completer.add(self)
            return self._ended

    def stop(self) -> None:
        """Returns when the operation has ended and no thread waits for it any more."""
        self.end()
        if self._ended:
            self._ended.wait()

    def is_done(self) -> bool:
        """Returns whether end() would return without a wait."""
        return self._is_over or all(native.is_done() for native in self._natives)

    def is_completed(self) -> bool:
        if self.is_done():
            self.end()
        return self._is_over

    def is_success(self) -> bool:
        return self.is_completed() and self._error is None

    def exception(self) -> Optional[BaseException]:
        return self._error

    def result(self) -> Any:
        return self.tensors

    def synchronize(self) -> None:
        self.wait()

    def source_rank(self) -> int:
        if self._source is None:
            raise RuntimeError("source_rank() is for receives")
        self.end()
        return int(self._source.value)

    _source_rank = source_rank

    def get_future(self) -> Any:
        if _asked.is_looking:
            _asked.found = self
            return _NOTHING
        with self._lock:
            if self._future is not None:
                return self._future
            end = torch.futures.Future()
            # Not set_exception(): PyTorch's C++ would take Python's exception for a value.
            self._future = end.then(lambda _: self._outcome())
            is_over = self._is_over
            if not is_over:
                self._end_of_future = end
        if is_over:
            end.set_result(None)
        else:
            self._end_in_background()
        return self._future

    def _outcome(self) -> Any:
        if self._error:
            raise self._error
        return self.tensors


# PyTorch wraps a Work that was written in Python in a holder. The holder passes on only wait() and get_future()
# (PyTorch 2.15: PyProcessGroup.hpp). The holder's other methods find our Work through get_future().

_NOTHING = torch.futures.Future()


class _Asked(threading.local):
    is_looking = False
    found: Optional[Work] = None


_asked = _Asked()


def _work_behind(holder: Any) -> Optional[Work]:
    _asked.is_looking, _asked.found = True, None
    try:
        holder.get_future()
    except RuntimeError:  # a Work of another backend
        pass
    finally:
        _asked.is_looking = False
    return _asked.found


def _pass_on(name: str) -> None:
    original = getattr(_TorchWork, name)

    def ask(self: Any) -> Any:
        work = _work_behind(self)
        return getattr(work, name)() if work else original(self)

    setattr(_TorchWork, name, ask)


for _name in ("is_completed", "is_success", "exception", "result", "source_rank", "_source_rank"):
    _pass_on(_name)
