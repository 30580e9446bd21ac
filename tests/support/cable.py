#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A network cable with faults: delay, seeded loss and silence, each direction by itself.

netns.Hosts(2, faulty_cables=True) gives each host one in place of a plain veth pair:

    hosts[1].cable.set(delay=0.3)                    # seconds, each way
    hosts[1].cable.set(loss=0.05, seed=7)            # one frame in 20, on average
    hosts[1].cable.set(cut_from_host=True)           # the host's packets vanish; it still receives
    hosts[1].cable.set()                             # no faults

The cable needs no netem in the kernel. It has two TAP devices, one in the host, one in the switch's namespace. A
process of ours carries the frames between them. set() applies to frames that are sent after its return; earlier
frames have the earlier faults.
"""
import fcntl
import heapq
import json
import os
import random
import select
import struct
import subprocess
import sys
import time

TUNSETIFF = 0x400454CA
IFF_TAP, IFF_NO_PI = 0x0002, 0x1000
MOST_UNDERWAY = 4096  # frames; further ones are lost, as in a real router's full queue
BURST, QUEUE = 64, 1024  # frames that are read from a device at once, and frames that may wait in it


class Cable:
    """The test's handle of the cable. `enter`: words before a command that make it run in the switch's namespace."""

    def __init__(self, enter, port, host_pid, interface):
        argv = enter + [sys.executable, os.path.abspath(__file__), port, str(host_pid), interface]
        self._process = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                         stderr=subprocess.PIPE, text=True)
        if self._process.stdout.readline() != "ready\n":
            self._process.stdin.close()
            why = self._process.stderr.read().strip().splitlines()
            self.close()
            raise RuntimeError(why[-1] if why else "the cable's process ended")

    def set(self, *, delay=0.0, loss=0.0, seed=0, cut_to_host=False, cut_from_host=False):
        """From now on the cable has these faults and no others. delay: seconds each way; loss: from 0 to 1."""
        orders = {"delay": delay, "loss": loss, "seed": seed, "cut_to_host": cut_to_host,
                  "cut_from_host": cut_from_host}
        self._process.stdin.write(json.dumps(orders) + "\n")
        self._process.stdin.flush()
        if self._process.stdout.readline() != "done\n":
            raise RuntimeError("the cable's process has ended")

    def close(self):
        if not self._process.stdin.closed:
            self._process.stdin.close()
        self._process.wait()
        self._process.stdout.close()
        self._process.stderr.close()


def _tap(name):
    fd = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(fd, TUNSETIFF, struct.pack("16sH22x", name.encode(), IFF_TAP | IFF_NO_PI))
    return fd


class _Carrier:
    """Carries frames between two TAP devices until its orders end."""

    def __init__(self, host_fd, switch_fd):
        self._other = {host_fd: switch_fd, switch_fd: host_fd}
        self._host_fd = host_fd
        self._underway = []  # (due, number, fd, frame)
        self._number = 0
        self._obey({})

    def _obey(self, orders):
        self._delay = orders.get("delay", 0.0)
        self._loss = orders.get("loss", 0.0)
        self._random = random.Random(orders.get("seed", 0))
        self._cut = {self._host_fd: orders.get("cut_from_host", False),
                     self._other[self._host_fd]: orders.get("cut_to_host", False)}

    def run(self):
        poll = select.poll()
        for fd in (sys.stdin.fileno(), *self._other):
            poll.register(fd, select.POLLIN)
        orders = b""
        while True:
            now = time.monotonic()
            while self._underway and self._underway[0][0] <= now:
                _, _, fd, frame = heapq.heappop(self._underway)
                self._write(fd, frame)
            wait = (self._underway[0][0] - now) * 1000 if self._underway else None
            for fd, _ in poll.poll(wait):
                if fd in self._other:
                    self._carry(fd)
                    continue
                more = os.read(fd, 65536)
                if not more:
                    return
                *lines, orders = (orders + more).split(b"\n")
                for line in lines:
                    for sent in self._other:
                        for _ in range(QUEUE // BURST):
                            self._carry(sent)
                    self._obey(json.loads(line))
                    print("done", flush=True)

    def _carry(self, fd):
        for _ in range(BURST):
            try:
                frame = os.read(fd, 65536)
            except BlockingIOError:
                return
            except OSError:  # the device is down
                time.sleep(0.001)
                return
            if self._cut[fd] or (self._loss and self._random.random() < self._loss):
                continue
            if not self._delay:
                self._write(self._other[fd], frame)
            elif len(self._underway) < MOST_UNDERWAY:
                self._number += 1
                due = time.monotonic() + self._delay
                heapq.heappush(self._underway, (due, self._number, self._other[fd], frame))

    @staticmethod
    def _write(fd, frame):
        try:
            os.write(fd, frame)
        except OSError:  # the device's queue is full, or the device is down: the frame is lost
            pass


def main():
    port, host_pid, interface = sys.argv[1:]
    run = lambda *argv: subprocess.run(argv, check=True, stdin=subprocess.DEVNULL)
    far = f"far-{port}"
    host_fd, switch_fd = _tap(far), _tap(port)
    run("ip", "link", "set", far, "netns", host_pid, "name", interface)
    print("ready", flush=True)
    _Carrier(host_fd, switch_fd).run()


if __name__ == "__main__":
    main()
