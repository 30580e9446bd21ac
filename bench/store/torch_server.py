# SPDX-License-Identifier: Apache-2.0
"""PyTorch's own store server, as a peer for the benchmarks: prints its port, runs until killed.

    torch_server.py [--ipv4]

The server looks up the peer's name of every connection that it accepts, on its event loop. On its own dual-stack
socket each look-up is a DNS query, since /etc/hosts has no ::ffff:127.0.0.1. With --ipv4 it gets an IPv4
socket, so that /etc/hosts answers: its best case.
"""
import signal
import socket
import sys

from torch.distributed import TCPStore



def serve_ipv4():
    listener = socket.create_server(("127.0.0.1", 0), backlog=4096)
    port = listener.getsockname()[1]
    try:
        return TCPStore("127.0.0.1", port, is_master=True, wait_for_workers=False,
                        master_listen_fd=listener.detach())
    except NotImplementedError:  # PyTorch 2.4's server takes no socket
        return TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)


if "--ipv4" in sys.argv:
    store = serve_ipv4()
else:
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
print(store.port, flush=True)
signal.pause()
