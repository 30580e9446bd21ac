# SPDX-License-Identifier: Apache-2.0
"""Tests PyTorch's own clients with our server: `torch_client_test.py SERVER_PROGRAM [CASE…]`."""
import contextlib
import datetime
import os
import subprocess
import sys
import threading
import unittest

import torch
import torch.distributed as dist
from torch.distributed import PrefixStore, TCPStore

from serve import serving

SERVER = sys.argv[1] if len(sys.argv) > 1 else ""


def seconds(value):
    return datetime.timedelta(seconds=value)


def needs(method):
    """Skips a test whose call an older PyTorch lacks."""
    return unittest.skipUnless(hasattr(TCPStore, method), f"PyTorch {torch.__version__} has no Store.{method}")


class StoreCalls(unittest.TestCase):
    def setUp(self):
        server = contextlib.ExitStack()  # enterContext() is Python 3.11's
        self.addCleanup(server.close)
        self.port = server.enter_context(serving(SERVER.split()))
        self.store = self.connect()

    def connect(self):
        return TCPStore("127.0.0.1", self.port, is_master=False, timeout=seconds(10))

    def test_set_get_add_append_delete(self):
        s = self.store
        s.set("k", "v")
        self.assertEqual(s.get("k"), b"v")
        self.assertEqual(s.add("n", 5), 5)
        self.assertEqual(s.add("n", -7), -2)
        self.assertEqual(s.get("n"), b"-2")
        s.append("k", "w")
        self.assertEqual(s.get("k"), b"vw")
        self.assertTrue(s.delete_key("k"))
        self.assertFalse(s.delete_key("k"))

    def test_compare_set(self):
        s = self.store
        self.assertEqual(s.compare_set("k", "x", "y"), b"x")
        self.assertFalse(s.check(["k"]))
        self.assertEqual(s.compare_set("k", "", "a"), b"a")
        self.assertEqual(s.compare_set("k", "b", "c"), b"a")
        self.assertEqual(s.compare_set("k", "a", "c"), b"c")

    def test_check_num_keys(self):
        s = self.store
        s.multi_set(["a", "b"], ["1", "2"])
        self.assertEqual(s.multi_get(["b", "a"]), [b"2", b"1"])
        self.assertTrue(s.check(["a", "b"]))
        self.assertFalse(s.check(["a", "z"]))
        self.assertTrue(s.check([]))
        s.wait([])
        self.assertEqual(s.num_keys(), 2)

    @needs("list_keys")
    def test_list_keys(self):
        self.store.multi_set(["a", "b"], ["1", "2"])
        self.assertEqual(sorted(self.store.list_keys()), ["a", "b"])

    def test_wait_times_out_and_the_client_lives_on(self):
        s = self.store
        for _ in range(3):
            with self.assertRaises(dist.DistStoreError):
                s.wait(["missing"], datetime.timedelta(milliseconds=50))
        s.set_timeout(datetime.timedelta(milliseconds=50))
        with self.assertRaises(dist.DistStoreError):
            s.get("missing")
        s.set("missing", "here")
        self.assertEqual(s.get("missing"), b"here")

    def test_wait_ends_at_another_clients_set(self):
        other = self.connect()
        thread = threading.Thread(target=lambda: other.set("k", "v"))
        thread.start()
        self.store.wait(["k"], seconds(10))
        thread.join()

    @needs("clone")
    def test_clone(self):
        self.store.clone().set("k", "v")
        self.assertEqual(self.store.get("k"), b"v")

    @needs("queue_push")
    def test_queues(self):
        s = self.store
        s.queue_push("q", "a")
        s.queue_push("q", "b")
        self.assertEqual(s.queue_len("q"), 2)
        self.assertEqual(s.queue_pop("q"), b"a")
        self.assertEqual(s.queue_pop("q", False), b"b")
        with self.assertRaises(dist.QueueEmptyError):
            s.queue_pop("q", False)

    def test_large_values(self):
        value = os.urandom(1 << 20) * 20  # more than PyTorch's server takes
        self.store.set("large", value)
        self.assertEqual(self.store.get("large"), value)

    def test_prefix_store(self):
        inner = PrefixStore("inner", self.store)
        outer = PrefixStore("outer", inner)
        outer.set("k", "v")
        self.assertEqual(self.store.get("inner/outer/k"), b"v")
        self.assertEqual(outer.get("k"), b"v")
        self.assertEqual(self.store.num_keys(), 1)

    @needs("barrier")
    def test_barrier(self):
        stores = [self.store, self.connect(), self.connect()]
        threads = [
            threading.Thread(target=lambda s=s: s.barrier("b", 3, seconds(10))) for s in stores
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(self.store.get("b"), b"3")
        with self.assertRaises(dist.DistStoreError):
            self.store.barrier("lonely", 2, datetime.timedelta(milliseconds=50))

    def test_join_counter(self):
        for i in range(3):
            TCPStore("127.0.0.1", self.port, 3, False, seconds(10))
        self.assertEqual(self.store.num_keys(), 1)
        if hasattr(self.store, "list_keys"):
            self.assertEqual(self.store.list_keys(), [])

    def test_junk_in_add_closes_that_client_alone(self):
        other = self.connect()
        self.store.set("k", "junk")
        with self.assertRaises(dist.DistNetworkError):
            self.store.add("k", 1)
        self.assertEqual(other.get("k"), b"junk")


def worker():
    """One rank of the gloo job below."""
    dist.init_process_group("gloo", init_method="env://", timeout=seconds(60))
    rank, world = dist.get_rank(), dist.get_world_size()
    tensor = torch.full((4,), float(rank + 1))
    dist.all_reduce(tensor)
    assert tensor.tolist() == [3.0] * 4, tensor
    group = dist.new_group([0, 1])
    dist.all_reduce(tensor, group=group)
    assert tensor.tolist() == [6.0] * 4, tensor
    dist.barrier()
    dist.monitored_barrier(timeout=seconds(30))
    gathered = [None] * world
    dist.all_gather_object(gathered, {"rank": rank})
    assert [entry["rank"] for entry in gathered] == list(range(world))
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(3, 2))
    model(torch.ones(5, 3)).sum().backward()
    dist.destroy_process_group()


class ProcessGroup(unittest.TestCase):
    def test_init_process_group_with_gloo(self):
        with serving(SERVER.split()) as port:
            workers = []
            for rank in range(2):
                environment = dict(
                    os.environ,
                    RANK=str(rank),
                    WORLD_SIZE="2",
                    LOCAL_RANK=str(rank),
                    MASTER_ADDR="127.0.0.1",
                    MASTER_PORT=str(port),
                    TORCHELASTIC_USE_AGENT_STORE="True",
                    TORCHELASTIC_RESTART_COUNT="0",
                    GLOO_SOCKET_IFNAME="lo",
                    OMP_NUM_THREADS="1",
                )
                workers.append(
                    subprocess.Popen([sys.executable, __file__, "--worker"], env=environment)
                )
            for process in workers:
                self.assertEqual(process.wait(timeout=120), 0)


if __name__ == "__main__":
    if SERVER == "--worker":
        worker()
    else:
        unittest.main(argv=[sys.argv[0]] + sys.argv[2:])
