# SPDX-License-Identifier: Apache-2.0
"""Ports for servers that tests start."""
import errno
import random
import socket


def free_port(address="127.0.0.1"):
    """Returns a free port, from outside the range that the kernel gives to other tests' connections."""
    with open("/proc/sys/net/ipv4/ip_local_port_range", encoding="ascii") as file:
        given = int(file.read().split()[0])  # the first port that the kernel gives to connections
    while True:
        port = random.randrange(10_000, given if given > 20_000 else 1 << 16)
        with socket.socket() as probe:
            try:
                probe.bind((address, port))
                return port
            except OSError as error:
                if error.errno != errno.EADDRINUSE:
                    raise
