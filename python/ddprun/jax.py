# SPDX-License-Identifier: Apache-2.0
"""Makes jax.distributed work under ddprun.

    import jax
    import ddprun.jax
    jax.distributed.initialize()

The import adds a ClusterEnv (jax/_src/clusters/cluster.py), so that initialize() needs no argument.
It comes before those of Slurm and others, which see only one process per node within a Slurm step.
"""
from __future__ import annotations

import functools
import os
import socket
import struct
from typing import Any

from jax._src.clusters.cluster import ClusterEnv as _JaxClusterEnv
from jax._src.distributed import State as _State

# The requests of PyTorch's store protocol that are needed here: docs/internals/store.md.
_VALIDATE, _SET, _ADD, _GET, _WAIT = 0, 1, 4, 3, 6
_MAGIC = 0x3C85F7CE
_BIND = "JAX_COORDINATOR_BIND_ADDRESS"


def _bytes(data: bytes) -> bytes:
    return struct.pack("<Q", len(data)) + data


class _Store:
    """A connection to the round's store."""

    def __init__(self, timeout: float) -> None:
        address = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
        self.socket = socket.create_connection(address, timeout)
        self.socket.sendall(struct.pack("<BI", _VALIDATE, _MAGIC))

    def set(self, key: bytes, value: bytes) -> None:
        self.socket.sendall(bytes([_SET]) + _bytes(key) + _bytes(value))

    def add(self, key: bytes) -> int:
        """Counts one more under this key, and returns the new number."""
        self.socket.sendall(bytes([_ADD]) + _bytes(key) + struct.pack("<q", 1))
        number: int = struct.unpack("<q", self._read(8))[0]
        return number

    def get(self, key: bytes) -> bytes:
        """Waits until the key is set, and returns its value."""
        self.socket.sendall(bytes([_WAIT]) + struct.pack("<Q", 1) + _bytes(key))
        self._read(1)
        self.socket.sendall(bytes([_GET]) + _bytes(key))
        return self._read(struct.unpack("<Q", self._read(8))[0])

    def _read(self, size: int) -> bytes:
        data = b""
        while len(data) < size:
            part = self.socket.recv(size - len(data))
            if not part:
                raise OSError("ddprun's store ended the connection")
            data += part
        return data


class ClusterEnv(_JaxClusterEnv):  # type: ignore[misc]  # JAX may have no types here
    name = "ddprun"
    _has_bound = False  # _BIND is there, and this module has set it

    @classmethod
    def is_env_present(cls) -> bool:
        return "DDPRUN_ROUND" in os.environ and "MASTER_PORT" in os.environ

    @classmethod
    def get_coordinator_address(cls, timeout_secs: int | None = None,
                                override_coordinator_port: str | None = None) -> str:
        """Returns the address: process 0 takes a free port and tells it to the others through the store."""
        prefix = b"ddprun/%s/jax/" % os.environ["DDPRUN_ROUND"].encode()
        store = _Store(timeout_secs or 300)
        with store.socket:
            # A call after shutdown(), also one of a later program of the same worker, gets a new coordinator.
            call = store.add(prefix + b"calls%d" % cls.get_process_id())
            key = prefix + b"coordinator%d" % call
            if cls.get_process_id() == 0:
                port = override_coordinator_port or cls._free_port()
                host = os.environ.get("DDPRUN_MASTER_NODE_ADDR") or os.environ["MASTER_ADDR"]
                host = "[%s]" % host if ":" in host else host
                address = "%s:%s" % (host, port)
                if host in ("127.0.0.1", "[::1]") and _BIND not in os.environ:
                    # JAX would listen on all interfaces, and takes anybody for a peer.
                    os.environ[_BIND] = address
                    cls._has_bound = True
                store.set(key, address.encode())
            return store.get(key).decode()

    @staticmethod
    def _free_port() -> int:
        with socket.socket() as probe:
            probe.bind(("", 0))
            port: int = probe.getsockname()[1]
            return port

    @classmethod
    def get_process_count(cls) -> int:
        return int(os.environ["WORLD_SIZE"])

    @classmethod
    def get_process_id(cls) -> int:
        return int(os.environ["RANK"])

    @classmethod
    def get_local_process_id(cls) -> int:
        return int(os.environ["LOCAL_RANK"])


def _forget_bound(initialize: Any) -> Any:
    """A later call may have another address, so the variable is there during initialize() alone."""
    @functools.wraps(initialize)
    def initialize_and_forget(*args: Any, **kwargs: Any) -> Any:
        try:
            return initialize(*args, **kwargs)
        finally:
            if ClusterEnv._has_bound:
                ClusterEnv._has_bound = False
                del os.environ[_BIND]
    return initialize_and_forget


_State.initialize = _forget_bound(_State.initialize)

# JAX takes the first ClusterEnv that is present, and adds a new subclass at the end.
_JaxClusterEnv._cluster_types.remove(ClusterEnv)
_JaxClusterEnv._cluster_types.insert(0, ClusterEnv)
