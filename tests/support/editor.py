# SPDX-License-Identifier: Apache-2.0
"""Plays an editor that debugs a Python program through debugpy."""
import json
import socket

TIMEOUT = 60


class Editor:
    """A client of the Debug Adapter Protocol."""

    def __init__(self, port):
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=TIMEOUT)
        self.stream = self.socket.makefile("rwb")
        self.sent = 0
        self.events = []

    def close(self):
        self.stream.close()
        self.socket.close()

    def send(self, command, **arguments):
        self.sent += 1
        body = json.dumps({"seq": self.sent, "type": "request", "command": command, "arguments": arguments}).encode()
        self.stream.write(b"Content-Length: %d\r\n\r\n" % len(body) + body)
        self.stream.flush()
        return self.sent

    def next(self):
        size = 0
        while (line := self.stream.readline().strip()) or size == 0:
            if line.lower().startswith(b"content-length:"):
                size = int(line.split(b":")[1])
            elif not line:
                raise EOFError("the debugger has closed the connection")
        return json.loads(self.stream.read(size))

    def answer(self, request):
        while True:
            message = self.next()
            if message["type"] == "response" and message["request_seq"] == request:
                assert message["success"], message
                return message.get("body", {})
            self.events.append(message)

    def event(self, name):
        while True:
            for each in self.events:
                if each.get("event") == name:
                    self.events.remove(each)
                    return each.get("body", {})
            self.events.append(self.next())

    def attach(self, breakpoints=None):
        """Attaches to the program. `breakpoints`: arguments of setBreakpoints."""
        self.answer(self.send("initialize", adapterID="test"))
        attach = self.send("attach", justMyCode=True)
        self.event("initialized")
        if breakpoints:
            self.answer(self.send("setBreakpoints", **breakpoints))
        self.answer(self.send("configurationDone"))
        self.answer(attach)
