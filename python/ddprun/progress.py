# SPDX-License-Identifier: Apache-2.0
"""Lets a Python worker report its progress to ddprun, exclude its node, and stop the job.

    import ddprun  # which has all names of this file
    for step in range(first_step, last_step + 1):   # 1, 2, …, counted over restarts
        if ddprun.should_stop(step):                # or ddprun.step(step): it never stops
            save(...)                               # the state after the step before this one
            sys.exit(75)
        …
        ddprun.report(loss, len(batch))             # shown to those who look at the job
        ddprun.step_parts(step=0.04, forward=0.01)  # shown, too: how the step's time was spent
    ddprun.phase("evaluate")

Standard library only. Without ddprun every call works and reports to nobody. The protocol:
docs/agent-socket.md. Only one thread may call at a time.
"""
from __future__ import annotations

import json
import mmap
import os
import socket
import struct
import sys
import threading
import time
from typing import Any, Protocol

_PAGE_BYTES = 4096
_PHASES = ("start-up", "train", "checkpoint", "evaluate", "tear-down")
_MAGIC = int.from_bytes(b"DDPRUNPG", "little")
# The page's words, each of 8 bytes.
_VERSION, _PHASE, _STEP, _STEPS_DONE = 1, 8, 9, 10
_STOP_REQUEST, _STOP_DEADLINE = 16, 17
_NUM_REPORTS, _LOSS, _SAMPLES = 96, 97, 98
_STEPS_BEGUN, _STEPS_TIMED, _STEP_SUMS = 99, 100, 101  # from _STEP_SUMS on: six times, then the bytes


class _Agent:
    """The connection to this node's agent, and the page that is shared with it."""

    def __init__(self) -> None:
        self.socket: socket.socket | None = None
        self.first_step_said = False
        self.answer = b""
        self.rest = b""  # the bytes received after the welcome
        self.pages: list[int] = []
        self.words = memoryview(mmap.mmap(-1, _PAGE_BYTES)).cast("B").cast("Q")
        self.path = os.environ.get("DDPRUN_AGENT_SOCKET", "")
        self.greeted: socket.socket | None = None  # a connection that has no welcome yet
        self.next_try: float | None = None  # a step after this time tries again; None: no try is due
        if self.path:
            try:
                if not self._join(5):
                    raise OSError("the agent does not answer")
            except (OSError, ValueError) as error:
                print("ddprun: no progress is reported: %s" % error, file=sys.stderr)

    def try_again(self) -> None:
        """Joins an agent that was silent and answers now. Doesn't wait."""
        if self.next_try is None or time.monotonic() < self.next_try:
            return
        try:
            self._join(0)
        except (OSError, ValueError):
            pass

    def _join(self, seconds: float) -> bool:
        """Sends the hello unless that is done, and waits for the welcome. False: it did not come in time."""
        self.next_try = time.monotonic() + 2
        try:
            if self.greeted is None:
                self.answer, self.pages = b"", []
                self.greeted = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
                self.greeted.settimeout(seconds)
                self.greeted.connect(self.path)
                hello = {"type": "hello", "version": 1, "round": int(os.environ.get("DDPRUN_ROUND", "0")),
                         "local_rank": int(os.environ.get("DDPRUN_LOCAL_RANK") or os.environ.get("LOCAL_RANK", "0"))}
                self.greeted.sendall(json.dumps(hello).encode() + b"\n")
            try:
                memory = self._await_welcome(self.greeted, time.monotonic() + seconds)
            except (BlockingIOError, socket.timeout):
                return False
        except (OSError, ValueError):
            self._forget()
            raise
        words = memoryview(memory).cast("B").cast("Q")
        sums = range(_STEP_SUMS, _STEP_SUMS + 7)
        # Copies the progress so far to the agent's page, because the worker may be at work already.
        for word in (_STEPS_DONE, _STEP, _PHASE, _LOSS, _SAMPLES, _NUM_REPORTS, *sums, _STEPS_BEGUN, _STEPS_TIMED):
            words[word] = self.words[word]
        self.words = words
        self.first_step_said = False
        self.greeted.setblocking(False)
        self.socket, self.greeted, self.next_try = self.greeted, None, None
        return True

    def _forget(self) -> None:
        if self.greeted is not None:
            self.greeted.close()
        self.greeted = None
        for page in self.pages:
            os.close(page)

    def _await_welcome(self, agent: socket.socket, until: float) -> mmap.mmap:
        while b"\n" not in self.answer:
            agent.settimeout(max(until - time.monotonic(), 0))
            data, ancillary, _, _ = agent.recvmsg(4096, socket.CMSG_SPACE(4))
            for level, kind, content in ancillary:
                if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                    self.pages.append(int.from_bytes(content[:4], sys.byteorder))
            if not data:
                raise OSError("the agent ended the connection")
            self.answer += data
        line, _, self.rest = self.answer.partition(b"\n")
        welcome = json.loads(line)
        if welcome.get("type") != "welcome" or not self.pages:
            self.next_try = None  # the agent would refuse again
            raise OSError("the agent refused this worker: %s" % welcome.get("reason"))
        memory = mmap.mmap(self.pages[0], _PAGE_BYTES)
        if int.from_bytes(memory[:8], "little") != _MAGIC or memory[8] != 1:
            self.next_try = None
            raise OSError("the agent's progress page is of another version")
        while self.pages:
            os.close(self.pages.pop())
        return memory

    def say_first_step(self, number: int) -> None:
        """Once."""
        if not self.first_step_said:
            self.first_step_said = True
            self.say({"type": "first_step", "step": number})

    def say(self, event: dict[str, Any]) -> bool:
        """Sends the event. False: no agent took it. Never waits once connected."""
        if self.socket is None:
            return False
        try:
            self.socket.sendall(json.dumps(event, ensure_ascii=False).encode() + b"\n")
            return True
        except OSError:
            self.socket = None
            return False


def wait_for_place() -> None:
    """Under --prewarm, waits until this spare's node has a place in the job, and sets its variables in os.environ.

    Call it when all is imported, before the process group is made. Without --prewarm it returns at once."""
    if os.environ.get("DDPRUN_ROUND") != "0":
        return
    agent = _Agent()
    if agent.socket is None:
        raise OSError("ddprun's agent can't be reached: no place for this worker")
    agent.say({"type": "wait_for_place"})
    with agent.socket as connection:
        connection.setblocking(True)
        with connection.makefile("rb") as stream:
            place = json.loads(agent.rest + stream.readline())
            variables = stream.read(place["bytes"])
    if place.get("type") != "assign" or len(variables) != place["bytes"]:
        raise OSError("ddprun's agent gave no place")
    for variable in filter(None, os.fsdecode(variables).split("\0")):
        name, _, value = variable.partition("=")
        os.environ[name] = value
    global _agent_of_process
    with _lock:
        _agent_of_process = (None, None)  # the earlier connection's hello had no round


_lock = threading.Lock()
_agent_of_process: tuple[int | None, _Agent | None] = (None, None)


def _agent() -> _Agent:
    # A forked child makes its own connection, because two processes on one would mix their lines.
    global _agent_of_process
    with _lock:
        pid, agent = _agent_of_process
        if agent is None or pid != os.getpid():
            agent = _Agent()
            _agent_of_process = (os.getpid(), agent)
        return agent


def connected() -> bool:
    """Returns whether this worker is connected to an agent."""
    return _agent().socket is not None


def step(number: int) -> None:
    """Reports that step `number` (1, 2, …, counted over restarts) begins and that the one before it is done."""
    agent = _agent()
    agent.try_again()
    words = agent.words
    before = words[_STEP]
    if before == number:
        return
    if before > 0:
        words[_STEPS_DONE] = before
        agent.say_first_step(before)
    words[_PHASE] = 1
    words[_STEP] = number


def step_done() -> None:
    """Reports that the last step that began is done. For the end of the loop, or before a long pause."""
    agent = _agent()
    if agent.words[_STEP] == agent.words[_STEPS_DONE]:
        return
    agent.words[_STEPS_DONE] = agent.words[_STEP]
    agent.say_first_step(agent.words[_STEP])


def phase(name: str) -> None:
    """Reports what the worker does now: "start-up", "train", "checkpoint", "evaluate" or "tear-down"."""
    _agent().words[_PHASE] = _PHASES.index(name)


def report(loss: float, num_samples: int = 0) -> None:
    """Reports this rank's loss and samples in the step just done, for those who look at the job."""
    words = _agent().words
    words[_LOSS] = int.from_bytes(struct.pack("<d", float(loss)), "little")
    words[_SAMPLES] += int(num_samples)
    words[_NUM_REPORTS] += 1


log = report  # for ddprun.log(loss=…)


def step_parts(step: float = 0.0, forward: float = 0.0, backward: float = 0.0, communication: float = 0.0,
               exposed: float = 0.0, loader: float = 0.0, bytes: int = 0) -> None:
    """Reports how long the parts of the step just done took, in seconds. docs/ddp.md says what each part is.

    exposed: the communication time without overlapping computation. bytes: how many were communicated."""
    words = _agent().words
    times = (step, forward, backward, communication, exposed, loader)
    values = [max(0, round(time * 1e9)) for time in times] + [max(0, int(bytes))]
    words[_STEPS_BEGUN] += 1
    for place, value in enumerate(values, _STEP_SUMS):
        words[place] = (words[place] + value) % 2**64
    words[_STEPS_TIMED] = words[_STEPS_BEGUN]


def stop_requested() -> bool:
    """Returns whether the agent asks this worker to end soon."""
    return _agent().words[_STOP_REQUEST] != 0


def should_stop(number: int, store: _Store | None = None) -> bool:
    """Begins a step or says to stop. Call it at the beginning of each step, on every rank, instead of step(number).

    False: the step begins. True, on all ranks at the same step: save what is needed to go on from the
    end of the step before, and exit with 75, soon. Reads a word of memory; once a stop is asked for,
    each step also makes a round trip to the store. `store`: a torch.distributed Store that all ranks
    share. None: the round's own, through torch.distributed.TCPStore. If it fails or doesn't answer
    for 5 s, the ranks can't agree: prints a warning and returns False.
    """
    _agent().try_again()
    if stop_requested():
        _finish_device()
        step_done()
        if _agreement.reached(number, store):
            phase("checkpoint")
            return True
    step(number)
    return False


def _finish_device() -> None:
    # A host thread that runs ahead of its GPU could be past the step on which the others agree.
    cuda = getattr(sys.modules.get("torch"), "cuda", None)  # also None while another thread imports it
    if cuda is not None and cuda.is_available() and cuda.is_initialized():
        cuda.synchronize()


class _Store(Protocol):
    """The part of torch.distributed.Store that is needed here."""

    def check(self, keys: list[str]) -> bool: ...
    def get(self, key: str) -> bytes: ...
    def add(self, key: str, amount: int) -> int: ...


class _Agreement:
    """The agreement on the step before which all ranks stop. It uses the same keys as the C++ SDK.

    No rank waits for another one here, because that one may be waiting for it in a collective."""

    def __init__(self) -> None:
        self.own_store: _Store | None = None
        self.posted = False
        self.boundary: int | None = None
        self.tries_left = 2

    def reached(self, number: int, store: _Store | None) -> bool:
        while self.boundary is None and self.tries_left > 0:
            try:
                self.boundary = self._ask(number, store)
                break
            except Exception as error:
                self.own_store = None
                self.tries_left -= 1
                print("ddprun: can't agree on a step to leave at: %s" % error, file=sys.stderr)
        return self.boundary is not None and number >= self.boundary

    def _ask(self, number: int, store: _Store | None) -> int | None:
        # Asks in a thread, because a store's own time-out is minutes, or none.
        limit = 5.0
        if _agent().words[_STOP_DEADLINE]:
            limit = min(limit, _agent().words[_STOP_DEADLINE] / 1e9 - time.monotonic())
        outcome: list[tuple[int | None, Exception | None]] = []
        given_up = threading.Event()

        def ask() -> None:
            try:
                outcome.append((self._boundary_in(store or self._own_store(), number, given_up), None))
            except Exception as error:
                outcome.append((None, error))

        thread = threading.Thread(target=ask, daemon=True)
        thread.start()
        thread.join(max(limit, 0.001))
        if not outcome:
            given_up.set()
            self.tries_left = 1  # that was this one: the thread still uses the store
            raise OSError("the store doesn't answer")
        boundary, error = outcome[0]
        if error is not None:
            raise error
        return boundary

    def _own_store(self) -> _Store:
        if self.own_store is None:
            from torch.distributed import TCPStore
            self.own_store = TCPStore(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]),
                                      is_master=False)
        return self.own_store

    def _boundary_in(self, store: _Store, number: int, given_up: threading.Event) -> int | None:
        prefix = "ddprun/%s/stop/" % os.environ.get("DDPRUN_ROUND", "0")
        if self.posted:
            return int(store.get(prefix + "boundary")) if store.check([prefix + "boundary"]) else None
        self.posted = True
        all_posted = store.add(prefix + "posted", 1) == int(os.environ.get("WORLD_SIZE", 1))
        if not all_posted or given_up.is_set():
            return None
        store.add(prefix + "boundary", number + 1)  # not set(), which waits for no reply
        return number + 1


_agreement = _Agreement()


def _short(reason: object) -> str:
    """Returns the reason as valid UTF-8 that fits into one message."""
    return str(reason).encode(errors="replace")[:900].decode(errors="ignore")


def exclude_node(reason: object) -> bool:
    """Reports that this node is faulty: the round ends, and the next one goes on without the node.

    The agent ends this process soon after. False: no agent took the report."""
    return _agent().say({"type": "exclude_node", "reason": _short(reason)})


def stop_job(reason: object, exit_code: int = 1) -> bool:
    """Ends the job on all nodes with `exit_code` (1 … 255). False: no agent took the request."""
    return _agent().say({"type": "stop_job", "reason": _short(reason), "exit_code": exit_code})
