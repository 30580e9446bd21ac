# SPDX-License-Identifier: Apache-2.0
"""An agent's connection that can send messages which no real agent sends."""
import hashlib
import hmac
import json
import os
import socket
import struct

TEXT, BINARY, CLOSE, PING, PONG = 1, 2, 8, 9, 10

# An agent's first message, but for its job.
JOIN = {"type": "join", "seq": 0, "ack": 0, "version": 1, "oldest_version": 1, "instance": "0" * 32, "session": "",
        "settings": {"min_nodes": 1, "max_nodes": 1, "max_restarts": 1, "max_node_losses": 16, "max_preemptions": 16,
                     "no_progress_restarts": 0, "exclude_after": 0, "spares": 0, "restart_on_join": False,
                     "hang_action": "default", "rdzv_backend": "c10d", "store": "proxy"},
        "timeouts": {"join_ms": 600000, "last_call_ms": 30000, "keep_alive_ms": 60000, "start_ms": 300000,
                     "stop_grace_ms": 30000, "exit_barrier_ms": 3600000, "max_restart_delay_ms": 30000,
                     "replacement_ms": 0, "rendezvous_lost_ms": 60000},
        "num_workers": 1, "host": "forger", "pid": 1, "advertised_addr": "", "store_port": 1, "topology": "",
        "program": "forger", "role": "default", "user_id": 0}


class RawAgent:
    """An agent's connection that has proved the token, if there is one. hear() returns the rendezvous' next frame."""

    def __init__(self, endpoint, token=None, path="/v1/agent"):
        host, port = endpoint.rsplit(":", 1)
        self.socket = socket.create_connection((host, int(port)), 10)
        self.socket.sendall(f"GET {path} HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
                            "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n"
                            .encode())
        head = b""
        while not head.endswith(b"\r\n\r\n"):
            head += self.bytes(1)
        if token is None:
            return
        of_rendezvous = bytes.fromhex(head.decode().split("DDPRUN-Challenge: 1 ")[1].split()[0])
        mine = os.urandom(32)
        proof = hmac.new(token, b"ddprun proof 1: agent\0" + of_rendezvous + mine, hashlib.sha256).hexdigest()
        self.say(TEXT, f"proof 1 {mine.hex()} {proof}".encode())
        assert self.hear()[1].startswith(b"proof 1 ")

    def bytes(self, size):
        got = b""
        while len(got) < size:
            more = self.socket.recv(size - len(got))
            if not more:
                raise ConnectionResetError
            got += more
        return got

    def say(self, kind, content):
        size = bytes([0x80 | len(content)]) if len(content) < 126 else b"\xfe" + struct.pack(">H", len(content))
        self.socket.sendall(bytes([0x80 | kind]) + size + bytes(4) + content)

    def hear(self):
        kind, size = self.bytes(2)
        size = struct.unpack(">H", self.bytes(2))[0] if size == 126 else size
        return kind & 15, self.bytes(size)

    def tell(self, message):
        self.say(TEXT, json.dumps(message).encode())

    def message(self, kind):
        """Waits for the next message of type `kind`, and returns it."""
        while True:
            opcode, content = self.hear()
            if opcode == TEXT and json.loads(content)["type"] == kind:
                return json.loads(content)

    def lives(self):
        """Returns True if the rendezvous took all earlier messages and keeps the connection. Else the last message."""
        last = ""
        try:
            self.say(PING, b"x")
            while True:
                kind, content = self.hear()
                if kind == PONG and content == b"x":
                    return True
                last = content if kind == TEXT else last
        except OSError:
            return last
