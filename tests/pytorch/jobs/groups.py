# SPDX-License-Identifier: Apache-2.0
"""Makes the calls that PyTorch programs make on the store and on groups: new_group, barrier, monitored_barrier, store
calls of each kind, clone and PrefixStore."""
import datetime
import os

import torch
import torch.distributed as dist


def check_groups(rank, world_size):
    even = dist.new_group(list(range(0, world_size, 2)))
    odd = dist.new_group(list(range(1, world_size, 2)))
    mine = even if rank % 2 == 0 else odd
    value = torch.tensor([float(rank)])
    dist.all_reduce(value, group=mine)
    assert value.item() == sum(range(rank % 2, world_size, 2)), value
    for _ in range(3):
        dist.barrier()
        dist.monitored_barrier(timeout=datetime.timedelta(seconds=30), wait_all_ranks=True)
    subgroup, _ = dist.new_subgroups(group_size=world_size)
    gathered = [None] * world_size
    dist.all_gather_object(gathered, {"rank": rank}, group=subgroup)
    assert gathered == [{"rank": r} for r in range(world_size)]


def check_store(rank, world_size):
    store = dist.PrefixStore("test", dist.distributed_c10d._get_default_store())
    store.set(f"from/{rank}", f"hello {rank}")
    store.wait([f"from/{r}" for r in range(world_size)], datetime.timedelta(seconds=30))
    assert [store.get(f"from/{r}") for r in range(world_size)] == [
        f"hello {r}".encode() for r in range(world_size)]
    if store.add("arrived", 1) == world_size:
        store.set("all arrived", "")
    store.wait(["all arrived"])
    assert store.add("arrived", 0) == world_size
    assert store.check(["arrived"]) and not store.check(["nothing"])
    assert store.multi_get(["from/0", f"from/{world_size - 1}"])[0] == b"hello 0"
    store.multi_set([f"a/{rank}", f"b/{rank}"], ["1", "2"])
    assert store.multi_get([f"a/{rank}", f"b/{rank}"]) == [b"1", b"2"]
    store.append(f"log/{rank}", "x")
    store.append(f"log/{rank}", "y")
    assert store.get(f"log/{rank}") == b"xy"
    assert store.compare_set(f"cas/{rank}", "", "first") == b"first"
    assert store.compare_set(f"cas/{rank}", "other", "second") == b"first"
    assert store.delete_key(f"cas/{rank}") and not store.delete_key(f"cas/{rank}")
    if hasattr(store, "clone"):  # PyTorch 2.6 has no clone()
        store.clone().set(f"clone/{rank}", "c")
        assert store.get(f"clone/{rank}") == b"c"
    assert store.num_keys() > 0
    try:
        store.wait(["never"], datetime.timedelta(milliseconds=100))
        raise AssertionError("wait for a key that nobody sets came back")
    except dist.DistStoreError:
        pass
    assert store.get(f"from/{rank}") == f"hello {rank}".encode()  # the connection still works


def main():
    dist.init_process_group("gloo")
    rank, world_size = dist.get_rank(), dist.get_world_size()
    check_groups(rank, world_size)
    check_store(rank, world_size)
    dist.barrier()
    print(f"agreed rank {rank} of {world_size}", flush=True)
    dist.destroy_process_group()
    os._exit(0)  # PyTorch 2.15 aborts an exit in which one of gloo's threads drops a tensor


if __name__ == "__main__":
    main()
