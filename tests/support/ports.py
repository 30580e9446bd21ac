# SPDX-License-Identifier: Apache-2.0
"""Ports for servers that tests start."""
import errno
import random
import socket


def free_port(address="127.0.0.1"):
    """A free port. The kernel gives it to no connection of another test meanwhile."""
    with open("/proc/sys/net/ipv4/ip_local_port_range", encoding="ascii") as file:
        given = int(file.read().split()[0])  # the kernel gives ports from here on
    while True:
        port = random.randrange(10_000, given if given > 20_000 else 1 << 16)
        with socket.socket() as probe:
            try:
                probe.bind((address, port))
                return port
            except OSError as error:
                if error.errno != errno.EADDRINUSE:
                    raise
