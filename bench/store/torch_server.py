# SPDX-License-Identifier: Apache-2.0
"""PyTorch's own store server, as a peer for the benchmarks: prints its port, runs until killed.

It is given an IPv4 socket: for every accepted connection it asks for the peer's name, on its event
loop, and with its own dual-stack socket that is a DNS query per connection (/etc/hosts has no
::ffff:127.0.0.1), which would be what is measured.
"""
import signal
import socket

from torch.distributed import TCPStore

listener = socket.create_server(("127.0.0.1", 0), backlog=4096)
port = listener.getsockname()[1]
store = TCPStore("127.0.0.1", port, is_master=True, wait_for_workers=False,
                 master_listen_fd=listener.detach())
print(store.port, flush=True)
signal.pause()
