#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Emulates NODES agents of one job. They send a rendezvous the same messages as real agents, as often: keep-alives,
and the state of their ranks and nodes. `fleet_load` uses the shipped agents, but doesn't send these states.

    fake_agents.py HOST:PORT NODES WORKERS     prints "running" once all run; ends when its input does
"""
import asyncio
import json
import random
import struct
import sys

UPGRADE = ("GET /v1/agent HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
           "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n")
TEXT, CLOSE, PING, PONG = 1, 8, 9, 10
KEEP_ALIVE = 5.0
# Seconds between an agent's pings (keep_alive_interval of launcher/launch_config.h), and between its states ("at most
# once in …" of StepTimes in rendezvous/messages/messages.h). Every second state has the times of steps.
EACH_PING, EACH_TRAINING = KEEP_ALIVE / 3, 5
SLOT = EACH_PING / 16


def frame(opcode, payload):
    """Returns a WebSocket frame as a client sends it, masked with zeros."""
    head = bytes([0x80 | opcode])
    if len(payload) < 126:
        head += bytes([0x80 | len(payload)])
    else:
        head += bytes([0x80 | 126]) + struct.pack(">H", len(payload))
    return head + bytes(4) + payload


def spread(mean):
    return {"mean": mean, "worst": 1.3 * mean, "rank": 3}


class Job:
    def __init__(self, nodes, workers):
        self.nodes, self.workers = nodes, workers
        self.num_running = 0
        self.trouble = asyncio.get_running_loop().create_future()
        self.all_run = asyncio.Event()

    def join(self, index):
        settings = {"min_nodes": self.nodes, "max_nodes": self.nodes, "max_restarts": 0, "max_node_losses": 0, "max_preemptions": 0,
                    "no_progress_restarts": 0, "exclude_after": 0, "spares": 0, "restart_on_join": False,
                    "hang_action": "default", "rdzv_backend": "c10d"}
        timeouts = {"join_ms": 600000, "last_call_ms": 30000, "keep_alive_ms": int(1000 * KEEP_ALIVE), "start_ms": 300000,
                    "stop_grace_ms": 30000, "exit_barrier_ms": 3600000, "max_restart_delay_ms": 30000, "replacement_ms": 0}
        return {"type": "join", "version": 1, "run_id": "load", "instance": f"agent{index}", "session": "", "settings": settings,
                "timeouts": timeouts, "num_workers": self.workers, "host": f"node{index}", "pid": 1000 + index,
                "advertised_addr": "", "store_port": 1, "topology": "", "program": "train", "role": "default", "user_id": 0}

    def runs(self):
        self.num_running += 1
        if self.num_running == self.nodes:
            self.all_run.set()

    def fail(self, why):
        if not self.trouble.done():
            self.trouble.set_result(why)


class Agent(asyncio.Protocol):
    def __init__(self, job, index):
        self.job, self.index = job, index
        self.buffer, self.is_upgraded = b"", False
        self.sequence = self.heard = 0
        self.first_rank, self.step = None, 0

    def connection_made(self, transport):
        self.transport = transport
        transport.write(UPGRADE.encode())

    def connection_lost(self, error):
        self.job.fail(f"agent {self.index} lost its connection: {error}")

    def data_received(self, data):
        self.buffer += data
        if not self.is_upgraded:
            head, end, rest = self.buffer.partition(b"\r\n\r\n")
            if not end:
                return
            if b" 101 " not in head:
                return self.job.fail(head.decode(errors="replace"))
            self.is_upgraded, self.buffer = True, rest
            self.say(self.job.join(self.index))
            self.ping_in_turn()
        while (message := self.next_frame()) is not None:
            self.hear(*message)

    def next_frame(self):
        if len(self.buffer) < 2:
            return None
        opcode, length, at = self.buffer[0] & 15, self.buffer[1] & 127, 2
        if length >= 126:
            size = 2 if length == 126 else 8
            if len(self.buffer) < 2 + size:
                return None
            length, at = int.from_bytes(self.buffer[2:2 + size], "big"), 2 + size
        if len(self.buffer) < at + length:
            return None
        payload, self.buffer = self.buffer[at:at + length], self.buffer[at + length:]
        return opcode, payload

    def hear(self, opcode, payload):
        if opcode == PING:
            self.transport.write(frame(PONG, payload))
        elif opcode == CLOSE:
            self.job.fail(f"agent {self.index} was closed")
        elif opcode == TEXT:
            message = json.loads(payload)
            self.heard = max(self.heard, message["seq"])
            if message["type"] == "start_round":
                self.begin(message)
            elif message["type"] not in ("welcome", "waiting"):
                self.job.fail(f"agent {self.index} was told {payload.decode()}")

    def begin(self, start):
        self.round, self.first_rank = start["round"], start["first_global_rank"]
        self.say_numbered({"type": "workers_running", "round": self.round})
        self.say_numbered({"type": "first_step", "round": self.round, "step": 1})
        self.every(EACH_TRAINING, self.tell_training)
        self.job.runs()

    def every(self, seconds, call):
        """Calls `call` every `seconds`, from a random moment within the first `seconds` on."""
        loop = asyncio.get_running_loop()

        def again():
            if not self.transport.is_closing():
                call()
                loop.call_later(seconds, again)
        loop.call_later(random.random() * seconds, again)

    def say(self, message):
        self.transport.write(frame(TEXT, json.dumps({"seq": 0, "ack": self.heard, **message}, separators=(",", ":")).encode()))

    def say_numbered(self, message):
        self.sequence += 1
        self.say({**message, "seq": self.sequence})

    def ping_in_turn(self):
        """Pings as KeepAlive does: at multiples of SLOT on the rendezvous' clock, which is this machine's."""
        if self.transport.is_closing():
            return
        loop = asyncio.get_running_loop()
        loop.call_at((loop.time() + EACH_PING) // SLOT * SLOT, self.ping_in_turn)
        self.ping()

    def ping(self):
        self.transport.write(frame(PING, str(int(1e6 * asyncio.get_running_loop().time()) % (1 << 40)).encode()))

    def say_of_steps(self, **more):
        self.say({"type": "step_times", "round": self.round, **{"ranks": [], **more}})

    def tell_training(self):
        self.step += 100
        times = {"ranks": self.step_times()} if self.step % 200 == 100 else {}
        parts = {"ranks": self.job.workers, "bytes_per_step": 1.4e9, "least_overlap": 0.4, "least_overlap_rank": self.first_rank}
        for part, mean in (("step", 0.046), ("forward", 0.012), ("backward", 0.024), ("communication", 0.014), ("exposed", 0.006),
                           ("loader", 0.001)):
            parts[part] = spread(mean)
        self.say_of_steps(**times, monitor=self.monitor(), training={"phase": "train", "step": self.step, "num_ranks": self.job.workers, "loss": random.random(),
                                    "samples_per_second": 640.5, "step_parts": parts})

    def step_times(self):
        return [{"global_rank": self.first_rank + i, "step_us": random.randint(45000, 47000),
                                  "own_us": random.randint(24000, 26000)} for i in range(self.job.workers)]

    def monitor(self):
        rate = {"received_bytes_per_second": 1.2e9 * random.random(), "sent_bytes_per_second": 1.1e9 * random.random()}
        return {
            "cpus": 64, "cpu": random.random(), "memory_bytes": 540_000_000_000, "memory_used_bytes": random.randrange(10**11),
            "tcp_retransmits_per_second": 3.2 * random.random(), "interfaces": [{"name": f"eth{i}", **rate} for i in range(2)],
            "gpus": [{"gpu": i, "use": random.random(), "memory_bytes": 85_000_000_000, "memory_used_bytes": random.randrange(8 * 10**10),
                      "watts": 700 * random.random(), "celsius": 61} for i in range(self.job.workers)]}


async def run(endpoint, nodes, workers):
    host, port = endpoint.rsplit(":", 1)
    loop, job = asyncio.get_running_loop(), Job(nodes, workers)
    for index in range(nodes):
        await loop.create_connection(lambda index=index: Agent(job, index), host, int(port))
    ended = loop.create_future()
    loop.add_reader(sys.stdin, lambda: ended.done() or ended.set_result(None))
    running = asyncio.ensure_future(job.all_run.wait())
    await asyncio.wait((running, job.trouble, ended), return_when=asyncio.FIRST_COMPLETED)
    if running.done():
        print("running", flush=True)
        await asyncio.wait((job.trouble, ended), return_when=asyncio.FIRST_COMPLETED)
    sys.exit(job.trouble.result() if job.trouble.done() else 0)


if __name__ == "__main__":
    asyncio.run(run(sys.argv[1], int(sys.argv[2]), int(sys.argv[3])))
