# SPDX-License-Identifier: Apache-2.0
"""A TCP relay between processes of one host, for tests that cut connections or look at their bytes."""
import socket
import threading
import time


class Relay:
    """Carries connections to a port of 127.0.0.1; cut() ends the open ones. With `records`, `carried` has the bytes of
    each direction of each connection. Bytes arrive `late` seconds later, in either direction. `words` maps bytes to
    others of the same length, which replace them in WebSocket frames."""

    def __init__(self, port, records=False, late=0, words=None):
        self._to = port
        self._records = records
        self._late = late
        self._words = words
        self.carried = []
        self._changes_next = False
        self._open = set()
        self._lock = threading.Lock()
        self.num_cut = self.num_changed = 0
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self):
        while True:
            try:
                one, _ = self._listener.accept()
                other = socket.create_connection(("127.0.0.1", self._to))
            except OSError:
                return
            with self._lock:
                self._open |= {one, other}
            for source, target in ((one, other), (other, one)):
                threading.Thread(target=self._pump, args=(source, target), daemon=True).start()

    def _pump(self, source, target):
        said = bytearray()
        if self._records:
            self.carried.append(said)
        changed = self._changed_words()
        next(changed)
        try:
            while data := source.recv(1 << 16):
                if self._records:
                    said += data
                with self._lock:
                    changes, self._changes_next = self._changes_next, False
                if changes:
                    data = data[:-1] + bytes([data[-1] ^ 1])
                if self._words:
                    data = changed.send(data)
                if self._late:
                    time.sleep(self._late)
                target.sendall(data)
        except OSError:
            pass
        with self._lock:
            for each in (source, target):
                self._open.discard(each)
                self._shut(each)
        source.close()

    def _changed_words(self):
        """A generator. The caller sends it the bytes of one side of a connection, piece by piece. It yields the bytes to
        pass on, those of a WebSocket in whole frames."""
        rest = yield
        while b"\r\n\r\n" not in rest:
            rest += yield b""
        head, end, rest = rest.partition(b"\r\n\r\n")
        ready = head + end
        while b"upgrade: websocket" not in head.lower():  # a page
            rest = yield ready + rest
            ready = b""
        while True:
            while (frame := frame_at_start(rest)) and len(rest) >= frame[2]:
                header, mask, size = frame
                content = masked(rest[len(header):size], mask)
                for old, new in self._words.items():
                    self.num_changed += content.count(old)
                    content = content.replace(old, new)
                ready += header + masked(content, mask)
                rest = rest[size:]
            rest += yield ready
            ready = b""

    @staticmethod
    def _shut(one):
        try:
            one.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass

    def change_a_byte(self):
        """Changes the last byte of the next piece that passes, in either direction."""
        self._changes_next = True

    def has_changed_it(self):
        return not self._changes_next

    def cut(self):
        with self._lock:
            self.num_cut += bool(self._open)
            for each in self._open:
                self._shut(each)

    def close(self):
        self._listener.close()
        self.cut()


def frame_at_start(rest):
    """Returns the header, the mask, and the size with the header of the first WebSocket frame in `rest`. A client's
    content is masked with random bytes (RFC 6455, 5.3). The frame's end may be missing. None: the header is
    incomplete."""
    if len(rest) < 2:
        return None
    size, at = rest[1] & 0x7F, 2
    if size >= 126:
        width = 2 if size == 126 else 8
        size, at = int.from_bytes(rest[2:2 + width], "big"), 2 + width
    mask = bytes(4)
    if rest[1] & 0x80:
        mask, at = rest[at:at + 4], at + 4
    return (rest[:at], mask, at + size) if len(rest) >= at else None


def masked(content, mask):
    return bytes(byte ^ mask[i % 4] for i, byte in enumerate(content))


def unmasked(stream):
    """Returns the bytes that one side sent: the HTTP headers, and the WebSocket frames' unmasked content."""
    head, end, rest = stream.partition(b"\r\n\r\n")
    if b"upgrade: websocket" not in head.lower():
        return stream
    said = head + end
    while frame := frame_at_start(rest):
        header, mask, size = frame
        said += masked(rest[len(header):size], mask)
        rest = rest[size:]
    return said
