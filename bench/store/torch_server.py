# SPDX-License-Identifier: Apache-2.0
"""PyTorch's own store server, as a peer for the benchmarks: prints its port, runs until killed."""
import signal

from torch.distributed import TCPStore

store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
print(store.port, flush=True)
signal.pause()
