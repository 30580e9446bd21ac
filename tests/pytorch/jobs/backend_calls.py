# SPDX-License-Identifier: Apache-2.0
"""Checks that each call of torch.distributed has the same results on the backend "ddprun" and on gloo, in one job."""
import gc
import os
import sys
import threading
import time
from datetime import timedelta

import torch
import torch.distributed as dist
from torch.distributed import ReduceOp
from torch.utils._python_dispatch import TorchDispatchMode

os.environ.pop("DDPRUN_NODE_ADDR", None)  # as under another launcher
dist.init_process_group("cpu:ddprun,cuda:gloo", timeout=timedelta(seconds=20))  # without an import of ddprun
rank, size = dist.get_rank(), dist.get_world_size()
gloo = dist.new_group(backend="gloo")
OURS = None  # the default group
from ddprun.torch.backend import Backend, _elements_of  # noqa: E402

FLOATS = [torch.float32, torch.float64, torch.float16, torch.bfloat16]
INTEGERS = [torch.int8, torch.uint8, torch.int32, torch.int64]
NOT_GLOOS = [torch.int16, torch.bool, torch.complex64, torch.float8_e4m3fn]
SIZES = [1, 1000, 40_007]
num_compared = 0


def values(dtype, shape, seed=0):
    """Returns small whole numbers. Sums and products of three ranks are exact in each dtype."""
    generator = torch.Generator().manual_seed(100 * seed + rank)
    numbers = torch.randint(0, 3, shape if isinstance(shape, tuple) else (shape,), generator=generator)
    return numbers.bool() if dtype is torch.bool else numbers.to(dtype)


def expect(condition, what):
    if not condition:
        sys.exit("rank %d: wrong: %s" % (rank, what))


def same(ours, theirs, what):
    global num_compared
    num_compared += 1
    for one, other in zip(ours, theirs):
        expect(one.dtype == other.dtype and one.shape == other.shape and
               torch.equal(one.view(torch.uint8) if one.dtype == torch.float8_e4m3fn else one,
                           other.view(torch.uint8) if one.dtype == torch.float8_e4m3fn else other),
               "%s: %s, not %s" % (what, one.reshape(-1)[:8], other.reshape(-1)[:8]))


def compared(what, call, is_rounded=False):
    """Checks that call(group) returns the same tensors for both backends; `is_rounded`: but for the last bits."""
    ours, theirs = call(OURS), call(gloo)
    if is_rounded and ours:
        expect(torch.allclose(ours[0], theirs[0], rtol=4 * torch.finfo(ours[0].dtype).eps, atol=0), what)
        ours = theirs
    same(ours, theirs, what)


def raises(call, *texts):
    try:
        call()
    except (RuntimeError, ValueError) as error:
        for text in texts:
            expect(text in str(error), "%r not in %r" % (text, str(error)))
    else:
        sys.exit("no error: " + texts[0])


# -- reductions
def reductions():
    for dtype in FLOATS + INTEGERS:
        ops = [ReduceOp.SUM, ReduceOp.PRODUCT, ReduceOp.MIN, ReduceOp.MAX, ReduceOp.AVG]
        ops += [] if dtype.is_floating_point else [ReduceOp.BAND, ReduceOp.BOR, ReduceOp.BXOR]
        for op in ops:
            for count in SIZES:
                def result(tensor, call, group):
                    """Gloo has no average: its sum is divided here."""
                    is_divided = op == ReduceOp.AVG and group is gloo
                    call(ReduceOp.SUM if is_divided else op)
                    return torch.div(tensor, size, rounding_mode=None if dtype.is_floating_point else "trunc") if is_divided else tensor

                def all_reduce(group):
                    tensor = values(dtype, count)
                    return [result(tensor, lambda op: dist.all_reduce(tensor, op, group=group), group)]

                def reduce(group):
                    tensor = values(dtype, count)
                    tensor = result(tensor, lambda op, given=tensor: dist.reduce(given, 1, op, group=group), group)
                    return [tensor] if rank == 1 else []

                def reduce_scatter_tensor(group):
                    tensor = torch.empty(count, dtype=dtype)
                    return [result(tensor, lambda op: dist.reduce_scatter_tensor(tensor, values(dtype, size * count), op, group=group), group)]

                for call in (all_reduce, reduce, reduce_scatter_tensor):  # between hosts an average is divided before it is summed
                    compared("%s %s %s %d" % (call.__name__, dtype, op, count), call, op == ReduceOp.AVG and dtype.is_floating_point)
    options = dist.GatherOptions()
    options.rootRank = -1
    raises(lambda: dist.group.WORLD.gather([[]], [torch.ones(1)], options), "invalid root rank -1")
    raises(lambda: dist.all_reduce(torch.ones(1), ReduceOp.BAND), "BAND with non-integral dtype")
    raises(lambda: dist.all_reduce(torch.ones(1), dist._make_nccl_premul_sum(2.0)), "PREMUL_SUM")


def what_gloo_lacks():
    for dtype in (torch.int16, torch.complex64, torch.complex128):
        for op in (ReduceOp.SUM,) if dtype.is_complex else (ReduceOp.SUM, ReduceOp.PRODUCT):
            parts = [torch.full((3,), r + 2).to(dtype) * (1j if dtype.is_complex else 1) for r in range(size)]
            tensor = parts[rank].clone()
            dist.all_reduce(tensor, op)
            wanted = parts[0].clone()
            for part in parts[1:]:
                wanted = wanted + part if op == ReduceOp.SUM else wanted * part
            expect(torch.equal(tensor, wanted), "all_reduce %s %s" % (dtype, op))
    flags = torch.tensor([rank == 1, False, True])
    dist.all_reduce(flags)
    expect(flags.tolist() == [True, False, True], "a sum of bool is any")
    outputs = torch.empty(2, dtype=torch.int16)
    dist.reduce_scatter_tensor(outputs, torch.arange(2 * size, dtype=torch.int16), op=ReduceOp.BOR)
    expect(outputs.tolist() == [2 * rank, 2 * rank + 1], "reduce_scatter of int16")
    parts = [torch.full((2,), float(r)) for r in range(size)]
    output = torch.empty(2)
    dist.reduce_scatter(output, parts)
    expect(output.tolist() == [float(rank * size)] * 2, "reduce_scatter of a list")


# -- movement
def movement():
    for dtype in FLOATS + INTEGERS + NOT_GLOOS:
        for count in SIZES:
            own = values(dtype, count)

            def broadcast(group):
                tensor = own.clone()
                dist.broadcast(tensor, 2, group=group)
                return [tensor]

            def all_gather(group):
                parts = [torch.empty_like(own) for _ in range(size)]
                dist.all_gather(parts, own, group=group)
                return parts

            def into_one(group):
                whole = torch.empty(size * count, dtype=dtype)
                dist.all_gather_into_tensor(whole, own, group=group)
                return [whole]

            def gather(group):
                parts = [torch.empty_like(own) for _ in range(size)] if rank == 1 else None
                dist.gather(own, parts, dst=1, group=group)
                return parts or []

            def scatter(group):
                part = torch.empty_like(own)
                parts = [own + r if dtype not in (torch.bool, torch.float8_e4m3fn) else own for r in range(size)]
                dist.scatter(part, parts if rank == 1 else None, src=1, group=group)
                return [part]

            def all_to_all_single(group):
                whole = torch.empty(size * count, dtype=dtype)
                dist.all_to_all_single(whole, values(dtype, size * count, 4), group=group)
                return [whole]

            def all_to_all(group):
                parts = [torch.empty_like(own) for _ in range(size)]
                dist.all_to_all(parts, list(values(dtype, size * count, 4).split(count)))
                return [torch.cat(parts)]

            if dtype not in NOT_GLOOS:
                compared("all_to_all_single %s %d" % (dtype, count), all_to_all_single)
                same(all_to_all(OURS), all_to_all_single(gloo), "all_to_all %s %d" % (dtype, count))  # gloo hasn't this one
            for call in (broadcast, all_gather, into_one, gather, scatter):
                if dtype in NOT_GLOOS:
                    check_alone(call, own)
                else:
                    compared("%s %s %d" % (call.__name__, dtype, count), call)

    def uneven(group):
        rows = values(torch.float32, (size * 2 + 1, 3), 1)
        sent = [1] * (size - 1) + [size + 2]
        got = [1] * size if rank != size - 1 else [size + 2] * size
        whole = torch.empty(sum(got), 3)
        dist.all_to_all_single(whole, rows, got, sent, group=group)
        return [whole]

    def even(group):
        whole = torch.empty(2 * size, 3)
        dist.all_to_all_single(whole, values(torch.float32, (2 * size, 3), 2), group=group)
        return [whole]

    def listed(group):
        outputs = [torch.empty(r + rank + 1) for r in range(size)]
        dist.all_to_all(outputs, [values(torch.float32, r + rank + 1, 3) for r in range(size)], group=group)
        return outputs

    def nothing(group):
        whole = torch.empty(0, 3)
        dist.all_to_all_single(whole, torch.empty(0, 3), group=group)
        return [whole]

    compared("all_to_all_single of nothing", nothing)
    # It has as many elements for each rank, but a rank would get a part of a row.
    torn = torch.empty(size + 1, size)
    raises(lambda: dist.all_to_all_single(torch.empty_like(torn), torn), "%d rows can't be shared" % (size + 1))
    raises(lambda: dist.all_to_all_single(torch.empty_like(torn), torn, group=gloo), "does not divide equally")
    compared("all_to_all_single, uneven", uneven)
    compared("all_to_all_single", even)
    same(listed(OURS), [torch.randint(0, 3, (r + rank + 1,), generator=torch.Generator().manual_seed(300 + r)).float()
                        for r in range(size)], "all_to_all")

    def objects(group):
        found = [None] * size
        dist.all_gather_object(found, {"rank": rank, "text": "x" * rank}, group=group)
        expect([each["rank"] for each in found] == list(range(size)), "all_gather_object")
        return []
    compared("objects", objects)


def check_alone(call, own):
    """Checks a call with dtypes that gloo lacks: the bytes of rank 1 or 2 must arrive."""
    found = call(OURS)
    everyone = [torch.empty_like(own).view(torch.uint8) for _ in range(size)]
    dist.all_gather(everyone, own.view(torch.uint8), group=gloo)
    bytes_of = [each.contiguous().view(torch.uint8).reshape(-1) for each in found]
    if call.__name__ == "broadcast":
        expect(torch.equal(bytes_of[0], everyone[2].reshape(-1)), "broadcast %s" % own.dtype)
    elif call.__name__ in ("all_gather", "into_one", "gather") and found:
        expect(torch.equal(torch.cat(bytes_of), torch.cat(everyone).reshape(-1)), "%s %s" % (call.__name__, own.dtype))


def layouts():
    """Checks tensors that are not contiguous, and calls with several tensors."""
    def transposed(group):
        tensor = values(torch.float32, (4, 6)).t()
        dist.all_reduce(tensor, group=group)
        columns = values(torch.float32, (4, 6))[:, ::2]
        dist.broadcast(columns, 0, group=group)
        return [tensor, columns]
    found = transposed(OURS)
    wanted = [torch.empty(0), torch.empty(0)]
    dist.all_reduce(contiguous := values(torch.float32, (4, 6)).t().contiguous(), group=gloo)
    dist.broadcast(columns := values(torch.float32, (4, 6))[:, ::2].contiguous(), 0, group=gloo)
    wanted = [contiguous, columns]
    same(found, wanted, "not contiguous")
    whole = torch.zeros(size, 4)
    dist.all_gather(list(whole.split(1)), values(torch.float32, (1, 4)))
    expect(torch.equal(whole[rank], values(torch.float32, 4)), "all_gather into rows of one tensor")

    names = []

    class Seen(TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            names.append(str(function))
            return function(*args, **(kwargs or {}))

    def now(options):
        options.asyncOp = False
        return options

    # The backend's own methods, since such a mode sees no operation behind PyTorch's dispatcher.
    ours, part, own = dist.group.WORLD._get_backend(torch.device("cpu")), torch.empty(1, 4), values(torch.float32, (1, 4))
    with Seen():
        ours.allgather([list(whole.zero_().split(1))], [own], now(dist.distributed_c10d.AllgatherOptions()))
        ours.reduce_scatter([part], [list(whole.split(1))], now(dist.ReduceScatterOptions()))
    expect(torch.equal(whole[rank], own[0]) and torch.equal(part[0], size * whole[rank]), "lists of one tensor's parts")
    expect(not {"aten.copy_.default", "aten.cat.default"} & set(names), "no copy: %s" % names)
    dist.all_gather([whole[place:place + 1] for place in reversed(range(size))], own)
    expect(torch.equal(whole[size - 1 - rank], own[0]), "all_gather into rows in another order")

    rows, own = torch.zeros(size, 4), values(torch.float32, 4)
    rows[0] = own
    dist.all_gather(list(rows), rows[0])  # the input is a part of the output, on most ranks not their own
    expect(torch.equal(rows[rank], own), "all_gather from a row of the output")
    wanted_row = size * rows[rank]
    dist.reduce_scatter(rows[0], list(rows))
    expect(torch.equal(rows[0], wanted_row), "reduce_scatter into a row of the input")
    part = torch.empty(1, dtype=torch.complex64)
    dist.reduce_scatter(part, list((torch.ones(size, dtype=torch.complex64) * 1j).conj().split(1)))
    expect(part.item() == -1j * size, "reduce_scatter of a conjugated tensor's parts: %s" % part)

    def coalesced(group):
        tensors = [values(torch.float32, 5), values(torch.int64, 3), values(torch.float32, 40_001)]
        floats = [tensors[0], tensors[2]]
        twice = torch.full((3,), float(rank))
        dist.all_reduce_coalesced([twice, twice], group=group)
        with dist._coalescing_manager(group=group, async_ops=True) as manager:
            for tensor in floats:
                dist.all_reduce(tensor, group=group)
        manager.wait()
        return [*floats, twice]
    compared("coalesced", coalesced)

    def coalesced_parts(group):
        whole = [torch.empty(size * count) for count in (3, 40_001)]
        with dist._coalescing_manager(group=group) as manager:
            for each in whole:
                dist.all_gather_into_tensor(each, values(torch.float32, len(each) // size), group=group)
        parts = [torch.empty(count) for count in (3, 40_001)]
        with dist._coalescing_manager(group=group, async_ops=True) as manager:
            for part in parts:
                dist.reduce_scatter_tensor(part, values(torch.float32, size * len(part)), group=group)
        manager.wait()
        from torch.distributed import _functional_collectives as functional
        group = group or dist.group.WORLD
        gathered = functional.all_gather_into_tensor_coalesced([values(torch.float32, 3), values(torch.float32, 5)], group)
        reduced = functional.reduce_scatter_tensor_coalesced([values(torch.float32, 2 * size), values(torch.float32, size)],
                                                             "sum", [0, 0], group)
        return [*whole, *parts, *map(functional.wait_tensor, gathered), *map(functional.wait_tensor, reduced)]
    compared("coalesced all_gather and reduce_scatter", coalesced_parts)

    def sparse(group):
        indices = torch.tensor([[rank, 3]])
        tensor = torch.sparse_coo_tensor(indices, torch.ones(2, 2) * (rank + 1), (5, 2))
        dist.all_reduce(tensor, group=group)
        return [tensor.to_dense()]
    compared("sparse", sparse)


# -- work, messages, groups
def works():
    first, second = torch.full((40_000,), 1.0), torch.full((10,), 2.0)
    work, later = dist.all_reduce(first, async_op=True), dist.all_reduce(second, async_op=True)
    expect(later.wait() and work.is_completed() and work.is_success(), "works end in order")
    expect(first[-1] == size and second[-1] == 2 * size, "their results")
    expect(work.result()[0] is first or torch.equal(work.result()[0], first), "the result")
    seen = threading.Event()
    future = dist.all_reduce(torch.ones(5), async_op=True).get_future()
    future.then(lambda done: seen.set() if done.value()[0][0] == size else None)
    expect(torch.equal(future.wait()[0], torch.full((5,), float(size))) and seen.wait(10), "a future")
    late = torch.zeros(3)
    if rank == 0:
        work = dist.irecv(late, 1)
        expect(not work.is_completed(), "nothing was sent")
        raises(lambda: work.wait(timedelta(milliseconds=50)), "has not ended within")
        dist.barrier()
        work.wait()
        expect(work.is_completed() and late[2] == 7, "a message")
    else:
        dist.barrier()
        if rank == 1:
            dist.send(torch.full((3,), 7.0), 0)
    dist.barrier(async_op=True).wait()
    dist.monitored_barrier(timeout=timedelta(seconds=20))


def other_threads():
    """Rank 1 joins the sum once another thread of rank 0 has told it to. So that thread must run while rank 0 waits."""
    comm = dist.group.WORLD._get_backend(torch.device("cpu"))._comm
    tensor, word = torch.ones(3), torch.ones(1)
    buffer = _elements_of(tensor)
    if rank == 0:
        gate, interval = threading.Lock(), sys.getswitchinterval()
        gate.acquire()
        thread = threading.Thread(target=lambda: (gate.acquire(), dist.send(word, 1, group=gloo)))
        thread.start()
        sys.setswitchinterval(100)  # from here on only a waiting thread lets others run
        gate.release()
    elif rank == 1:
        dist.recv(word, 0, group=gloo)
    comm.run("all_reduce", buffer, 0)
    if rank == 0:
        sys.setswitchinterval(interval)
        thread.join()
    expect(tensor[0] == size, "the sum")


def threads_of_a_group():
    """A thread of rank 0 waits in a call that ends only after another thread's messages."""
    pair = [torch.ones(2), torch.ones(3)]
    for waits in (dist.barrier, lambda: dist.monitored_barrier(timeout=timedelta(seconds=10)),
                  lambda: dist.all_reduce_coalesced(pair), lambda: dist.all_to_all_single(torch.empty(size), torch.ones(size))):
        word = torch.ones(1)
        if rank == 0:
            thread = threading.Thread(target=waits)
            thread.start()
        for _ in range(200 if rank < 2 else 0):  # the other thread's call begins among them
            dist.send(word, 1) if rank == 0 else dist.recv(word, 0)
        thread.join() if rank == 0 else waits()


def destroyed_by_another_thread():
    """Checks that a call under way, for which the others don't come, gets an error when another thread destroys the group."""
    group = dist.new_group(backend="ddprun")
    backend = group._get_backend(torch.device("cpu"))
    told = []

    def waits():
        try:
            dist.all_reduce(torch.ones(1), group=group)
        except RuntimeError as error:
            told.append(str(error))

    if rank == 0:
        thread = threading.Thread(target=waits)
        thread.start()
        while not backend._inside.is_busy() and thread.is_alive():
            time.sleep(0.001)
        backend.shutdown()
        thread.join()
        expect(told and "destroyed by another thread" in told[0], "the error of a group that is gone: %s" % told)
    dist.barrier(gloo)


def timed_out():
    """Checks a collective that ends at the time-out of its group."""
    group = dist.new_group(backend="ddprun")
    dist.set_timeout(timedelta(milliseconds=300), group)
    if rank == 0:
        begin = time.monotonic()
        raises(lambda: dist.all_reduce(torch.ones(1), group=group), "at the timeout of the call", "timed out after 300 ms: waiting for ranks 1, 2")
        expect(time.monotonic() - begin < 10, "the group's own time-out")
    dist.barrier(gloo)


def stores():
    """Checks groups of threads with a store of this process, and with one that was written in Python."""
    class Own(dist.Store):
        def __init__(self):
            super().__init__()
            self.inner = dist.HashStore()
            for name in ("set", "get", "add", "compare_set", "check", "wait"):
                setattr(self, name, getattr(self.inner, name))

    options = dist.AllreduceOptions()
    options.asyncOp = False
    for store in (dist.HashStore(), Own()):
        tensors = [torch.ones(3), torch.ones(3)]

        def run(place):
            Backend(store, place, 2, timedelta(seconds=20)).allreduce([tensors[place]], options)

        threads = [threading.Thread(target=run, args=(place,)) for place in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        expect(tensors[0][0] == 2 and tensors[1][0] == 2, "a sum of threads")
    raises(lambda: Backend(dist.HashStore(), 0, 3, timedelta(milliseconds=200)), "timeout", "did not come: 1, 2")


def forked():
    """Checks that the end of a process forked from a rank, e.g. a data loader's, doesn't end the group."""
    child = os.fork()
    if child == 0:
        dist.group.WORLD._get_backend(torch.device("cpu"))._close()
        os._exit(0)
    expect(os.waitpid(child, 0)[1] == 0, "its end")
    dist.barrier()


def messages():
    if rank == 0:
        for tag in (5, 3):
            dist.send(torch.full((30_000,), float(tag)), 1, tag=tag)
        total = 0
        for _ in range(size - 1):
            tensor = torch.zeros(4)
            source = dist.recv(tensor, tag=9)
            expect(tensor[3] == source, "who sent it")
            total += source
        expect(total == size * (size - 1) // 2, "a message of each")
    elif rank == 1:
        tensor = torch.empty(30_000)
        for tag in (3, 5):
            dist.recv(tensor, 0, tag=tag)
            expect(tensor[-1] == tag, "a message of its tag")
    if rank != 0:
        dist.send(torch.full((4,), float(rank)), 0, tag=9)
    sent, received = torch.full((60_000,), float(rank)), torch.empty(60_000)
    for work in dist.batch_isend_irecv([dist.P2POp(dist.isend, sent, (rank + 1) % size),
                                        dist.P2POp(dist.irecv, received, (rank - 1) % size)]):
        work.wait()
    expect(received[-1] == (rank - 1) % size, "batch_isend_irecv")


def groups():
    pair = dist.new_group([0, 2])
    other = dist.new_group([1, 2], backend="ddprun")
    for members, group in (([0, 2], pair), ([1, 2], other)):
        if rank in members:
            tensor = torch.ones(3)
            dist.all_reduce(tensor, group=group)
            expect(tensor[0] == 2, "a sub-group")
            expect(group._get_backend(torch.device("cpu")).name() == "ddprun", "its backend")
    halves = dist.split_group(split_ranks=[[0], list(range(1, size))])
    if rank > 0:
        tensor = torch.ones(3)
        dist.all_reduce(tensor, group=halves)
        expect(tensor[0] == size - 1, "split_group")
    part = dist.distributed_c10d._get_default_group()._get_backend(torch.device("cpu"))
    expect(part.name() == "ddprun" and part.supports_splitting, "the backend itself")
    from torch.distributed import _functional_collectives as functional
    expect(functional.all_reduce(torch.ones(2), "sum", dist.group.WORLD)[0] == size, "functional collectives")


def wrapped():
    """Checks PyTorch's wrapper, which compares the ranks' calls first and reports how they differ."""
    dist.set_debug_level(dist.DebugLevel.DETAIL)
    group = dist.new_group(backend="ddprun")
    dist.set_debug_level(dist.DebugLevel.OFF)
    gc.collect()
    tensor = torch.ones(3)
    dist.all_reduce(tensor, group=group)
    expect(tensor[0] == size, "a sum under DETAIL")
    raises(lambda: dist.all_reduce(torch.ones(3 + rank), group=group), "mismatch", "allreduce".upper())


def unequal():
    """Checks that ranks with different calls get an error, and that the group is unusable afterwards."""
    call = dist.all_reduce if rank == 0 else lambda tensor, group: dist.broadcast(tensor, 1, group=group)
    group = dist.new_group(backend="ddprun")
    raises(lambda: call(torch.ones(3), group=group), "different calls", "all_reduce", "broadcast")
    gone = dist.new_group(backend="ddprun")
    gone._get_backend(torch.device("cpu")).shutdown()
    raises(lambda: dist.all_reduce(torch.ones(1), group=gone), "no communicator")
    group, aborted = dist.new_group(backend="ddprun"), dist.new_group(backend="ddprun")
    if rank == 0:
        aborted.abort()
    else:
        raises(lambda: dist.all_reduce(torch.ones(1), group=aborted), "rank 0 aborted")
    if rank == 0:
        raises(lambda: dist.monitored_barrier(group, timedelta(milliseconds=300), wait_all_ranks=True),
               "Ranks 1, 2 failed to pass monitoredBarrier in 300 ms")
    dist.barrier(gloo)


for part in (reductions, what_gloo_lacks, movement, layouts, works, other_threads, threads_of_a_group, destroyed_by_another_thread, timed_out, stores, forked, messages, groups, wrapped, unequal):
    part()
dist.barrier(gloo)
if rank == 0:
    print("compared", num_compared, flush=True)
dist.destroy_process_group()
