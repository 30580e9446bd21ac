# SPDX-License-Identifier: Apache-2.0
"""Sends PyTorch's server and ours the same random requests. Both must answer the same bytes.

`differential_test.py SERVER_PROGRAM [SEED [STEPS]]`. Several connections to each server take turns,
one request at a time. After each one every connection's bytes are compared. Behind each request goes a GET
of a key that no other request touches; its answer shows that the request's answers are complete.

Only requests for which PyTorch's server has a bug are left out (docs/internals/store.md, "Where PyTorch's server has bugs").
Each place below that avoids a bug names it. An older PyTorch's server gets no requests that its own client lacks.
"""
import random
import socket
import struct
import sys

import torch
from torch.distributed import TCPStore

from serve import serving, torch_server

SET, CAS, GET, ADD, CHECK, WAIT, NUM, DELETE, APPEND, MGET, MSET, CANCEL, PING, PUSH, POP, LEN, LIST, BARRIER = range(1, 19)
HANDSHAKE = struct.pack("<BI", 0, 0x3C85F7CE)
KEYS = [b"/a", b"/b", b"/c", b"init/", b"/\x00\xff"]
QUEUES = [b"/q", b"/r"]
BARRIERS = [b"/x", b"/y"]
VALUES = [b"", b"1", b"-5", b" 12abc", b"junk", b"v" * 1000, b"9223372036854775807", bytes(range(256))]
MARK, END = b"/mark", b"\xc0\xff\xee: an answer ends here"
TIMEOUT = 20
KINDS = ("set set cas get get add add check check wait wait num delete append mget mset cancel "
         "push push pop len list barrier ping delete delete delete").split()
LATER = {"push": "queue_push", "pop": "queue_pop", "len": "queue_len", "list": "list_keys", "barrier": "barrier"}
KINDS = [kind for kind in KINDS if kind not in LATER or hasattr(TCPStore, LATER[kind])]
if torch.__version__.startswith("2.4."):
    KINDS.remove("ping")


def string(data):
    return struct.pack("<Q", len(data)) + data


def strings(keys):
    return struct.pack("<Q", len(keys)) + b"".join(map(string, keys))


class Server:
    """Several connections to one server, and the bytes that each has heard."""

    def __init__(self, port, connections):
        self.port = port
        self.sockets = [self.connect() for _ in range(connections)]
        self.sockets[0].sendall(bytes([SET]) + string(MARK) + string(END))
        self.exchange(0, b"")  # the key must exist before the others' GET, which would close their connections

    def connect(self):
        connection = socket.create_connection(("127.0.0.1", self.port), TIMEOUT)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.sendall(HANDSHAKE)
        return connection

    def exchange(self, index, request):
        """Sends a request and a GET on connection `index`. Returns the bytes before the GET's answer. b"closed": the
        server closed the connection, and there is a new one."""
        connection = self.sockets[index]
        heard, end = b"", string(END)
        try:
            connection.sendall(request + bytes([GET]) + string(MARK))
            while not heard.endswith(end):
                data = connection.recv(1 << 16)
                if not data:
                    raise ConnectionResetError
                heard += data
        except (ConnectionResetError, BrokenPipeError):
            connection.close()
            self.sockets[index] = self.connect()
            self.exchange(index, b"")
            return b"closed"
        return heard[:-len(end)]

    def close(self):
        for connection in self.sockets:
            connection.close()


class Calls:
    """Makes random requests. Keeps as much of the servers' state as it needs to avoid PyTorch's bugs."""

    def __init__(self, rng):
        self.rng = rng
        self.present = set()  # keys that exist
        self.queued = {queue: 0 for queue in QUEUES}
        self.waiting = {}  # connection -> keys it waits for (a barrier's key: a list of one)
        self.arrived = {key: 0 for key in BARRIERS}

    def exists(self, key):
        return key in self.present or self.queued.get(key, 0) > 0

    def written(self, keys):
        """Notes that keys were set, and which waits this ends."""
        self.present.update(keys)
        for connection in [c for c, wait in self.waiting.items() if all(map(self.exists, wait))]:
            del self.waiting[connection]

    def awaited(self, key):
        return any(key in wait for wait in self.waiting.values())

    def next(self, connection):
        """Returns a request's name for messages, and its bytes, for this connection."""
        rng = self.rng
        key, value = rng.choice(KEYS), rng.choice(VALUES)
        queue = rng.choice(QUEUES)
        some = [rng.choice(KEYS) for _ in range(rng.randrange(4))]
        waits = connection in self.waiting
        kind = rng.choice(KINDS)
        if kind == "set":
            self.written([key])
            return kind, bytes([SET]) + string(key) + string(value)
        if kind == "append":
            self.written([key])
            return kind, bytes([APPEND]) + string(key) + string(value)
        if kind == "cas":
            expected = rng.choice(VALUES)
            if key not in self.present and expected:
                # This request stores nothing, but PyTorch's server would wake clients that wait for the key.
                if self.awaited(key):
                    return self.next(connection)
            else:
                self.written([key])
            return kind, bytes([CAS]) + string(key) + string(expected) + string(value)
        if kind == "get":
            return kind, bytes([GET]) + string(key)
        if kind == "add":
            delta = rng.choice([0, 1, -1, 1000, -(10**12)])
            # Overflow is undefined behaviour in PyTorch's server. These deltas cause none, unless the key has the
            # largest value; then both servers wrap.
            self.written([key])  # a refused key is present already
            return kind, bytes([ADD]) + string(key) + struct.pack("<q", delta)
        if kind == "check":
            return kind, bytes([CHECK]) + strings(some + rng.choice([[], [queue]]))
        if kind == "wait":
            # A connection waits only once: in PyTorch's server a second wait overwrites the first one's count.
            if waits:
                return self.next(connection)
            # Only one client waits for a queue, and for nothing else. In PyTorch's server a WAIT for elements and
            # missing keys would never end, and a queue's waiter stays registered after it was woken.
            if rng.randrange(4) == 0 and self.queued[queue] > 0:
                some = [queue]
            if not all(map(self.exists, some)):
                self.waiting[connection] = some
            return kind, bytes([WAIT]) + strings(some)
        if kind == "num":
            return kind, bytes([NUM])
        if kind == "delete":
            # This avoids the edge-triggered count of PyTorch's WAIT.
            if self.awaited(key):
                return self.next(connection)
            self.present.discard(key)
            return kind, bytes([DELETE]) + string(key)
        if kind == "mget":
            return kind, bytes([MGET]) + strings(some)
        if kind == "mset":
            self.written(some)
            pairs = b"".join(string(k) + string(rng.choice(VALUES)) for k in some)
            return kind, bytes([MSET]) + struct.pack("<Q", len(some)) + pairs
        if kind == "cancel":
            self.waiting.pop(connection, None)
            return kind, bytes([CANCEL])
        if kind == "push":
            self.queued[queue] += 1
            return kind, bytes([PUSH]) + string(queue) + string(value)
        if kind == "pop":
            self.queued[queue] = max(0, self.queued[queue] - 1)
            return kind, bytes([POP]) + string(queue)
        if kind == "len":
            return kind, bytes([LEN]) + string(queue)
        if kind == "list":
            return kind, bytes([LIST])
        if kind == "barrier":
            if waits:
                return self.next(connection)
            barrier = rng.choice(BARRIERS)
            world = rng.choice([1, 2, 3, 5, 20])
            self.arrived[barrier] += 1
            if self.arrived[barrier] >= world:
                self.waiting = {c: w for c, w in self.waiting.items() if w != ["barrier", barrier]}
            else:
                self.waiting[connection] = ["barrier", barrier]
            return kind, bytes([BARRIER]) + string(barrier) + struct.pack("<q", world)
        return "ping", bytes([PING]) + struct.pack("<I", rng.randrange(1 << 32))

    def gone(self, connection):
        self.waiting.pop(connection, None)


def sorted_list(answer):
    """Returns the answer with its keys sorted, because LIST_KEYS may answer in any order."""
    (count,) = struct.unpack_from("<q", answer)
    at, keys = 8, []
    for _ in range(count):
        (size,) = struct.unpack_from("<Q", answer, at)
        keys.append(answer[at + 8 : at + 8 + size])
        at += 8 + size
    return sorted(keys), answer[at:]


def main():
    seed = int(sys.argv[2]) if len(sys.argv) > 2 else 1
    steps = int(sys.argv[3]) if len(sys.argv) > 3 else 3000
    connections = 4
    with serving(sys.argv[1].split()) as our_port, torch_server() as torch_port:
        calls = Calls(random.Random(seed))
        servers = [Server(our_port, connections), Server(torch_port, connections)]
        pending_stops = 0
        counts = {}
        for step in range(steps):
            index = calls.rng.randrange(connections)
            # A reply to an earlier wait reaches a connection at its next exchange. So all connections make an exchange
            # after each request, and each answer has the bytes of one request only.
            kind, request = calls.next(index)
            answers = [server.exchange(index, request) for server in servers]
            others = [[server.exchange(i, b"") for i in range(connections) if i != index] for server in servers]
            counts[kind] = counts.get(kind, 0) + 1
            pending_stops += sum(len(heard) for heard in others[0])
            if kind == "list" and b"closed" not in answers:
                answers = [sorted_list(answer) for answer in answers]
            if answers[0] != answers[1] or others[0] != others[1]:
                sys.exit(
                    f"seed {seed}, step {step}, connection {index}: {kind} {request!r}\n"
                    f"  ours answers     {answers[0]!r}, others hear {others[0]!r}\n"
                    f"  PyTorch's answers {answers[1]!r}, others hear {others[1]!r}"
                )
            if answers[0] == b"closed":
                calls.gone(index)
        for server in servers:
            server.close()
    if len(counts) < len(set(KINDS)) or pending_stops < 10:
        sys.exit(f"the calls were not varied enough: {counts}, {pending_stops} waits ended by others")
    print(f"seed {seed}: {steps} requests, same answers; {pending_stops} waits ended by others; {counts}")


if __name__ == "__main__":
    main()
