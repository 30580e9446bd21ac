# SPDX-License-Identifier: Apache-2.0
"""torch.distributed's backend "ddprun": ddprun's host communicator (docs/host-communicator.md).

Contiguous tensors are not copied, but for a list that is not one tensor's parts. The calling thread does a synchronous
call itself. The communicator has no reduction of int16 and no bitwise one: each rank gathers these tensors, and PyTorch
reduces them."""
from __future__ import annotations

import ctypes
import os
import re
import threading
import weakref
from collections import deque
from collections.abc import Sequence
from contextlib import AbstractContextManager
from datetime import timedelta
from functools import partial, reduce
from typing import Any, Callable, Optional

import torch
import torch.distributed as dist
from torch._C import _distributed_c10d as c10d
from torch.distributed import DistBackendError, ReduceOp

from . import _c
from .work import Completer, Inside, Work, backend_error

_DTYPES = {torch.float32: 0, torch.float64: 1, torch.float16: 2, torch.bfloat16: 3, torch.int8: 4, torch.uint8: 5,
           torch.int32: 6, torch.int64: 7, torch.bool: 8, torch.float8_e4m3fn: 9, torch.float8_e5m2: 10}
_OPS = {ReduceOp.SUM: _c.SUM, ReduceOp.AVG: _c.AVERAGE, ReduceOp.MIN: _c.MIN, ReduceOp.MAX: _c.MAX,
        ReduceOp.PRODUCT: _c.PRODUCT}
_LOCAL_OPS: dict[Any, Callable[[Any, Any], Any]] = {
    ReduceOp.SUM: torch.add, ReduceOp.AVG: torch.add, ReduceOp.MIN: torch.minimum, ReduceOp.MAX: torch.maximum,
    ReduceOp.PRODUCT: torch.mul, ReduceOp.BAND: torch.bitwise_and, ReduceOp.BOR: torch.bitwise_or,
    ReduceOp.BXOR: torch.bitwise_xor}
_BITWISE = (ReduceOp.BAND, ReduceOp.BOR, ReduceOp.BXOR)
_KEPT: set[Backend] = set()  # under TORCH_DISTRIBUTED_DEBUG=DETAIL PyTorch's wrapper holds only their C++ part
_LONGEST_ABORT = 60.0  # seconds until the calls that abort() ends have returned
_NO_MORE = timedelta(milliseconds=-1)  # c10d's value for "not given"


def _milliseconds(timeout: timedelta) -> int:
    return max(int(timeout.total_seconds() * 1000), 1)


def _bytes_of(tensor: Any) -> _c.Buffer:
    return _c.Buffer(tensor.data_ptr(), tensor.numel() * tensor.element_size(), _c.UINT8)


def _elements_of(tensor: Any) -> _c.Buffer:
    return _c.Buffer(tensor.data_ptr(), tensor.numel(), _DTYPES[tensor.dtype])


def _op_of(options: Any) -> Any:
    return options.reduceOp.op


def _reduce_into(target: Any, op: Any, tensors: Sequence[Any]) -> None:
    result = reduce(_LOCAL_OPS[op], tensors)
    if op == ReduceOp.AVG:
        mode = None if result.is_floating_point() or result.is_complex() else "trunc"
        result = torch.div(result, len(tensors), rounding_mode=mode)
    target.copy_(result)


def _check_op(op: Any, tensor: Any) -> None:
    if op not in _LOCAL_OPS:
        raise ValueError("Cannot use ReduceOp.%s with ddprun" % getattr(op, "name", op))
    if op in _BITWISE and (tensor.is_floating_point() or tensor.is_complex()):
        raise ValueError("Cannot use ReduceOp.%s with non-integral dtype" % op.name)


def _check_one(tensors: Sequence[Any]) -> Any:
    if len(tensors) != 1:
        raise ValueError("ddprun takes one tensor per rank, not %d" % len(tensors))
    return tensors[0]


class Backend(c10d.Backend):
    supports_splitting = True
    # PyTorch 2.15 calls itself without end for each of these that isn't defined here.
    supports_coalescing = supports_time_estimate = supports_shrinking = supports_reconfigure = supports_window = False
    options: Any = None

    def __init__(self, store: Any, rank: int, size: int, timeout: timedelta) -> None:
        super().__init__(rank, size)
        self._rank, self._size, self._timeout = rank, size, timeout
        self.options = c10d.Backend.Options("ddprun", timeout)
        # The number gives each further group in this store its own keys.
        number = store.add("ddprun/%d" % rank, 1)
        try:
            self._comm = _c.Communicator(store, "ddprun/%d/" % number, rank, size,
                                         _milliseconds(timeout))
        except _c.Error as error:
            raise backend_error(error) from None
        # Held while a call is counted, and while one that isn't awaited begins. A handler of a signal may destroy the group
        # in the thread that holds it.
        self._lock = threading.RLock()
        self._inside = Inside()
        # The operations under way. Their buffers must live even if nobody else holds them.
        self._collectives: deque[Work] = deque()
        self._messages: set[Work] = set()
        self._sequence = 0
        self._default_ms = 0  # 0: the communicator's own timeout
        self._completer = Completer()  # ends the collectives, in their order
        if dist.get_debug_level() == dist.DebugLevel.DETAIL:
            _KEPT.add(self)
        self._close = weakref.finalize(self, _close, self._comm, self._lock, self._inside, self._collectives,
                                       self._messages, self._completer, os.getpid())

    # How operations are run.

    def _call(self, timeout: timedelta, tag: int = 0) -> Optional[_c.Call]:
        milliseconds = self._default_ms if timeout == _NO_MORE else _milliseconds(timeout)
        return _c.Call(milliseconds, tag) if milliseconds or tag else None

    def _run(self, options: Any, calls: Sequence[tuple[Any, ...]], tensors: Any,
             finish: Optional[Callable[[], object]] = None, kept: Any = None) -> Work:
        """Runs the communicator's functions `calls` (name, arguments), then `finish`.

        Nothing is locked during the wait: what this call waits for may need a call of another thread."""
        call = self._call(options.timeout)
        if not options.asyncOp and len(calls) == 1:
            self._run_now(*calls[0], call=call)
            if finish:
                finish()
            return Work((), tensors)
        try:
            with self._lock:
                self._sequence += 1
                work = Work([self._comm.start(*each, call=call) for each in calls], tensors, finish, (tensors, kept),
                            self._completer)
                done = self._take_done()
                self._collectives.append(work)
        except _c.Error as error:
            raise backend_error(error) from None
        if not options.asyncOp:
            self._wait_now(work)
            with self._lock:
                done += self._take_done()
        for each in done:  # without the lock, because their futures' callbacks may call this group
            each.end()
        return work

    def _wait_now(self, work: Work) -> None:
        work.wait()

    def _take_done(self) -> list[Work]:
        done = []
        while self._collectives and self._collectives[0].is_done():
            done.append(self._collectives.popleft())
        return done

    def _run_now(self, *operation: Any, call: Optional[_c.Call] = None) -> None:
        with self._lock:
            self._sequence += 1
            self._inside.begin()
        try:
            self._comm.run(*operation, call=call)
        except _c.Error as error:
            raise backend_error(error) from None
        finally:
            self._inside.end()

    # Reductions.

    def _reduction(self, tensors: Sequence[Any], options: Any, name: str, *more: Any) -> Work:
        op = _op_of(options)
        calls: list[tuple[Any, ...]] = []
        finishes: list[Callable[[], object]] = []
        kept = []
        for tensor in {each.data_ptr(): each for each in tensors}.values():  # reduces a tensor that is there twice once
            _check_op(op, tensor)
            flat = tensor if tensor.is_contiguous() else tensor.contiguous()
            if flat is not tensor:
                finishes.append(partial(tensor.copy_, flat))
            kept.append(flat)
            if flat.is_complex() and op in (ReduceOp.SUM, ReduceOp.AVG):
                flat = torch.view_as_real(flat)
            if op in _OPS and flat.dtype in _DTYPES:
                calls.append((name, _elements_of(flat), _OPS[op], *more))
                continue
            all_ranks = flat.new_empty((self._size, *flat.shape))
            kept.append(all_ranks)
            calls.append(("all_gather", _bytes_of(flat), _bytes_of(all_ranks)))
            finishes.insert(0, partial(_reduce_into, flat, op, all_ranks))
        return self._run(options, calls, tensors, _all(finishes), kept)

    def allreduce(self, tensors: Sequence[Any], options: Any) -> Work:
        tensor = _check_one(tensors)
        if tensor.is_sparse:
            return self._sparse_allreduce(tensor, options)
        op, dtype = _OPS.get(_op_of(options)), _DTYPES.get(tensor.dtype)
        if options.asyncOp or op is None or dtype is None or not tensor.is_contiguous():
            return self._reduction(tensors, options, "all_reduce")
        return self._run(options, [("all_reduce", _c.Buffer(tensor.data_ptr(), tensor.numel(), dtype), op)], tensors)

    def allreduce_coalesced(self, tensors: Sequence[Any], options: Any) -> Work:
        return self._reduction(tensors, options, "all_reduce")

    def reduce(self, tensors: Sequence[Any], options: Any) -> Work:
        return self._reduction([_check_one(tensors)], options, "reduce", options.rootRank)

    def _sparse_allreduce(self, tensor: Any, options: Any) -> Work:
        """Sums sparse tensors: every rank adds up all ranks' indices and values."""
        if _op_of(options) != ReduceOp.SUM:
            raise ValueError("Cannot use ReduceOp.%s with sparse tensors" % _op_of(options).name)
        own = tensor.coalesce()
        counts = torch.zeros(self._size, dtype=torch.int64)
        count = torch.tensor([own._nnz()])
        self._run_now("all_gather", _bytes_of(count), _bytes_of(counts))
        most = int(counts.max())

        def padded(part: Any, dimension: int) -> Any:
            shape = list(part.shape)
            shape[dimension] = most
            whole = part.new_zeros(shape)
            whole.narrow(dimension, 0, part.shape[dimension]).copy_(part)
            return whole

        indices, values = padded(own.indices(), 1), padded(own.values(), 0)
        all_indices = indices.new_empty((self._size, *indices.shape))
        all_values = values.new_empty((self._size, *values.shape))

        def finish() -> None:
            parts = [torch.sparse_coo_tensor(all_indices[rank][:, :count], all_values[rank][:count], tensor.shape)
                     for rank, count in enumerate(counts.tolist())]
            tensor.copy_(reduce(torch.add, parts).coalesce())

        return self._run(options, [("all_gather", _bytes_of(indices), _bytes_of(all_indices)),
                                   ("all_gather", _bytes_of(values), _bytes_of(all_values))],
                         [tensor], finish, (indices, values, all_indices, all_values))

    def reduce_scatter_single(self, output: Any, source: Any, options: Any) -> Work:
        return self._scatter_reduction([output], [source], options)

    def reduce_scatter_single_coalesced(self, outputs: Sequence[Any], sources: Sequence[Any], options: Any) -> Work:
        return self._scatter_reduction(outputs, sources, options)

    def reduce_scatter(self, outputs: Sequence[Any], sources: Sequence[Sequence[Any]], options: Any) -> Work:
        wholes = []
        for output, source in zip(outputs, sources):
            whole = _whole_of(source, output, self._rank)
            wholes.append(torch.cat([part.reshape(-1) for part in source]) if whole is None else whole)
        return self._scatter_reduction(outputs, wholes, options)

    def _scatter_reduction(self, outputs: Sequence[Any], sources: Sequence[Any], options: Any) -> Work:
        op = _op_of(options)
        calls: list[tuple[Any, ...]] = []
        finishes: list[Callable[[], object]] = []
        kept = []
        for output, source in zip(outputs, sources):
            _check_op(op, output)
            if source.numel() != output.numel() * self._size:
                raise ValueError("the input has %d elements, not %d times %d" %
                                 (source.numel(), self._size, output.numel()))
            flat, whole = output.contiguous(), source.contiguous()
            kept += [flat, whole]
            if flat is not output:
                finishes.append(partial(output.copy_, flat))
            if flat.is_complex() and op in (ReduceOp.SUM, ReduceOp.AVG):
                flat, whole = torch.view_as_real(flat), torch.view_as_real(whole)
            if op in _OPS and flat.dtype in _DTYPES:
                calls.append(("reduce_scatter", _elements_of(whole), _elements_of(flat), _OPS[op]))
                continue
            received = flat.new_empty((self._size, *flat.shape))
            kept.append(received)
            calls.append(self._exchange(_split(whole.view(-1), self._size), list(received)))
            finishes.insert(0, partial(_reduce_into, flat, op, received))
        return self._run(options, calls, outputs, _all(finishes), kept)

    # Copies from rank to rank.

    def broadcast(self, tensors: Sequence[Any], options: Any) -> Work:
        tensor = _check_one(tensors)
        flat = tensor.contiguous()
        finish = None if flat is tensor or self._rank == options.rootRank else partial(tensor.copy_, flat)
        return self._run(options, [("broadcast", _bytes_of(flat), options.rootRank)], tensors, finish, flat)

    def all_gather_single(self, output: Any, source: Any, options: Any) -> Work:
        return self._gathering([output], [source], options)

    def all_gather_single_coalesced(self, outputs: Sequence[Any], sources: Sequence[Any], options: Any) -> Work:
        return self._gathering(outputs, sources, options)

    def _gathering(self, outputs: Sequence[Any], sources: Sequence[Any], options: Any,
                   more: Optional[Callable[[], object]] = None) -> Work:
        calls: list[tuple[Any, ...]] = []
        finishes: list[Callable[[], object]] = []
        kept = []
        for output, source in zip(outputs, sources):
            if output.numel() != source.numel() * self._size or output.dtype != source.dtype:
                raise ValueError("the output has %d elements of %s, not %d times %d of %s" %
                                 (output.numel(), output.dtype, self._size, source.numel(), source.dtype))
            part, whole = source.contiguous(), output.contiguous()
            kept += [part, whole]
            if whole is not output:
                finishes.append(partial(output.copy_, whole))
            calls.append(("all_gather", _bytes_of(part), _bytes_of(whole)))
        if more:
            finishes.append(more)
        return self._run(options, calls, outputs, _all(finishes), kept)

    def allgather(self, outputs: Sequence[Sequence[Any]], sources: Sequence[Any], options: Any) -> Work:
        source, parts = _check_one(sources), _check_one(outputs)
        self._check_parts(parts, source)
        whole = _whole_of(parts, source, self._rank)
        if whole is not None:
            return self._with_result(outputs, self._gathering([whole], [source], options))
        whole = source.new_empty((self._size, *source.shape))
        return self._with_result(outputs, self._gathering([whole], [source], options, partial(_copy_parts, parts, whole)))

    def allgather_coalesced(self, outputs: Sequence[Sequence[Any]], sources: Sequence[Any], options: Any) -> Work:
        wholes = [source.new_empty((self._size, *source.shape)) for source in sources]

        def finish() -> None:
            for place, whole in enumerate(wholes):
                _copy_parts([of_rank[place] for of_rank in outputs], whole)

        return self._with_result(outputs, self._gathering(wholes, sources, options, finish))

    def _check_root(self, options: Any) -> None:
        if not 0 <= options.rootRank < self._size:
            raise ValueError("invalid root rank %d among %d" % (options.rootRank, self._size))

    def _check_parts(self, parts: Sequence[Any], like: Any) -> None:
        if len(parts) != self._size:
            raise ValueError("%d tensors for %d ranks" % (len(parts), self._size))
        for part in parts:
            if part.numel() != like.numel() or part.dtype != like.dtype:
                raise ValueError("a part has %d elements of %s, not %d of %s" %
                                 (part.numel(), part.dtype, like.numel(), like.dtype))

    @staticmethod
    def _with_result(tensors: Any, work: Work) -> Work:
        work.tensors = tensors[0] if len(tensors) == 1 else tensors
        return work

    def _exchange(self, sent: Sequence[Any], received: Sequence[Any]) -> tuple[Any, ...]:
        """Returns the call in which sent[r] goes to rank r and received[r] comes from it. None: nothing."""
        nothing = _c.Buffer(None, 0, _c.UINT8)
        return ("all_to_all", *(_c.buffers([nothing if each is None else _bytes_of(each) for each in those])
                                for those in (sent, received)))

    def _moving(self, options: Any, sent: Sequence[Any], received: Sequence[Any], result: Any) -> Work:
        sent = [each if each is None else each.contiguous() for each in sent]
        landed = [each if each is None else each.contiguous() for each in received]
        copied = [pair for pair in zip(received, landed) if pair[0] is not pair[1]]

        def finish() -> None:
            for place, part in copied:
                place.copy_(part)

        return self._run(options, [self._exchange(sent, landed)], result, finish if copied else None, (sent, landed))

    def gather(self, outputs: Sequence[Sequence[Any]], sources: Sequence[Any], options: Any) -> Work:
        source = _check_one(sources)
        self._check_root(options)
        parts: Sequence[Any] = [None] * self._size
        if self._rank == options.rootRank:
            parts = _check_one(outputs)
            self._check_parts(parts, source)
        return self._moving(options, self._only(options.rootRank, source), parts, outputs[0] if outputs else [])

    def scatter(self, outputs: Sequence[Any], sources: Sequence[Sequence[Any]], options: Any) -> Work:
        output = _check_one(outputs)
        self._check_root(options)
        parts: Sequence[Any] = [None] * self._size
        if self._rank == options.rootRank:
            parts = _check_one(sources)
            self._check_parts(parts, output)
        return self._moving(options, parts, self._only(options.rootRank, output), outputs)

    def _only(self, rank: int, tensor: Any) -> list[Any]:
        return [tensor if each == rank else None for each in range(self._size)]

    def alltoall(self, outputs: Sequence[Any], sources: Sequence[Any], options: Any) -> Work:
        if len(outputs) != self._size or len(sources) != self._size:
            raise ValueError("%d inputs and %d outputs for %d ranks" % (len(sources), len(outputs), self._size))
        return self._moving(options, sources, outputs, outputs)

    def all_to_all_single(self, output: Any, source: Any, output_sizes: Sequence[int], source_sizes: Sequence[int],
                          options: Any) -> Work:
        landed = output.contiguous()
        sent = source.contiguous()
        finish = None if landed is output else partial(output.copy_, landed)
        call = self._exchange(_split(sent, self._size, source_sizes), _split(landed, self._size, output_sizes))
        return self._run(options, [call], [output], finish, (sent, landed))

    # Messages are always asynchronous, since others may be under way in other threads.

    def _message(self, name: str, tensors: Sequence[Any], tag: int, *more: Any) -> Work:
        tensor = _check_one(tensors)
        flat = tensor.contiguous()
        finish = None if flat is tensor or name == "send" else partial(tensor.copy_, flat)
        source = more[0] if name == "recv_any" else None
        try:
            with self._lock:
                native = self._comm.start(name, _bytes_of(flat), *more, call=self._call(_NO_MORE, tag))
                work = Work([native], [tensor], finish, flat, Completer(is_for_one=True), source)
                done = {each for each in self._messages if each.is_done()}
                self._messages -= done
                self._messages.add(work)
        except _c.Error as error:
            raise backend_error(error) from None
        for each in done:
            each.end()
        return work

    def send(self, tensors: Sequence[Any], destination: int, tag: int) -> Work:
        return self._message("send", tensors, tag, destination)

    def recv(self, tensors: Sequence[Any], source: int, tag: int) -> Work:
        work = self._message("recv", tensors, tag, source)
        work._source = ctypes.c_int(source)
        return work

    def recv_anysource(self, tensors: Sequence[Any], tag: int) -> Work:
        return self._message("recv_any", tensors, tag, ctypes.c_int(-1))

    # The rest.

    def barrier(self, options: Any) -> Work:
        token = torch.zeros(1, dtype=torch.uint8)
        return self._run(options, [("all_reduce", _elements_of(token), _c.MAX)], [], None, token)

    def monitored_barrier(self, options: Any, wait_all_ranks: bool = False) -> None:
        """Waits for all ranks. Errors have the words of gloo's, and ours."""
        timeout = options.timeout if options.timeout != _NO_MORE else self._timeout
        if timeout <= timedelta(0):
            raise DistBackendError("Rank %d timed out in monitoredBarrier after 0 ms" % self._rank)
        milliseconds = _milliseconds(timeout)
        with self._lock:
            self._inside.begin()
        try:
            self._comm.barrier(_c.Call(milliseconds, 0))
        except _c.Error as error:
            text = ("Rank %d successfully reached monitoredBarrier, but received errors while waiting for send/recv from "
                    "rank 0: %s" % (self._rank, error))
            missing = re.search(r"waiting for ranks? ([0-9, ]+)$", str(error))
            if self._rank == 0 and missing:
                names = missing[1] if wait_all_ranks else missing[1].split(",")[0]
                text = "Rank%s %s failed to pass monitoredBarrier in %d ms" % ("s" if "," in names else "", names,
                                                                              milliseconds)
            raise DistBackendError("[Rank %d]: %s" % (self._rank, text)) from None
        finally:
            self._inside.end()

    def split(self, store: Any, ranks: Sequence[int], options: Any) -> Optional[Backend]:
        if self._rank not in ranks:
            return None
        timeout = getattr(options, "_timeout", self._timeout)
        return Backend(store, list(ranks).index(self._rank), len(ranks), timeout)

    def perform_nocolor_split(self, device: Any) -> None:
        """Does nothing: the ranks of a new group don't need the others."""

    def getBackendName(self) -> str:
        return "ddprun"

    name = getBackendName

    def set_timeout(self, timeout: timedelta) -> None:
        self._timeout, self._default_ms = timeout, _milliseconds(timeout)

    def _set_sequence_number_for_group(self) -> None:
        self._sequence = 0

    def _get_sequence_number_for_group(self) -> int:
        return self._sequence

    def abort(self) -> None:
        self._comm.abort("abort() was called")

    def shutdown(self) -> None:
        self._close()
        _KEPT.discard(self)


def _close(comm: _c.Communicator, lock: AbstractContextManager[Any], inside: Inside, collectives: deque[Work], messages: set[Work],
           completer: Completer, process: int) -> None:
    """Ends the operations under way, then destroys the communicator. Does nothing in a forked child, which has none."""
    if os.getpid() != process:
        return
    with lock:
        if inside.is_busy():
            comm.abort("the process group was destroyed by another thread")
            if not inside.await_end(_LONGEST_ABORT):
                return  # the memory of the communicator is in use
        works = [*collectives, *messages]
        if not all(work.is_done() for work in works):
            comm.abort("the process group was destroyed with operations under way")
        for work in works:
            work.stop()
        completer.stop()
        comm.destroy()


def _all(finishes: Sequence[Callable[[], object]]) -> Optional[Callable[[], object]]:
    if not finishes:
        return None

    def finish() -> None:
        for each in finishes:
            each()

    return finish


def _split(tensor: Any, num_ranks: int, sizes: Sequence[int] = ()) -> list[Any]:
    """Splits the tensor along its first dimension. Without `sizes` the parts are equal."""
    rows = tensor.shape[0] if tensor.dim() else 1
    if not sizes and rows % num_ranks:
        raise ValueError("%d rows can't be shared by %d ranks equally" % (rows, num_ranks))
    sizes = sizes or [rows // num_ranks] * num_ranks
    if len(sizes) != num_ranks or sum(sizes) != rows:
        raise ValueError("split sizes %s are not those of %d rows for %d ranks" % (list(sizes), rows, num_ranks))
    return list(tensor.split(list(sizes)))


def _whole_of(parts: Sequence[Any], other: Any, rank: int) -> Any:
    """Returns the tensor of which these are the parts in their order, one behind another in memory. None: there is none, or
    `other`, the call's other buffer, lies in it elsewhere than at this rank's part, which the communicator refuses."""
    first = parts[0]
    storage, place, elements, dtype = first.untyped_storage().data_ptr(), first.storage_offset(), first.numel(), first.dtype
    for part in parts:
        if (part.storage_offset() != place or part.numel() != elements or part.dtype != dtype or not part.is_contiguous() or
                part.is_conj() or part.is_neg() or part.untyped_storage().data_ptr() != storage):
            return None
        place += elements
    whole = first.as_strided((len(parts) * elements,), (1,))
    begin, at = whole.data_ptr(), other.data_ptr()
    if at != begin + rank * first.nbytes and at < begin + whole.nbytes and begin < at + other.nbytes:
        return None
    return whole


def _copy_parts(parts: Sequence[Any], whole: Any) -> None:
    for part, rank_s in zip(parts, whole):
        part.copy_(rank_s.view(part.shape))
