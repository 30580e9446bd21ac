# SPDX-License-Identifier: Apache-2.0
"""A worker with its own c10d client, without PyTorch. Each of its requests must take effect exactly once."""
import re

# Arguments: TURNS [all]. TURNS: a number, or "until=PATH": turns go on until that file exists. A turn is an ADD; with
# "all" also an APPEND, a COMPARE_SET, a QUEUE_PUSH and a QUEUE_POP. The last output line has the sum. With "all" it
# begins with "turns" and their number, then "pushed" and "popped" with the sums of the queue's elements.
CLIENT = r"""
import itertools, os, socket, struct, sys
store = socket.create_connection((os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])), 30)
store.settimeout(60)
store.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
string = lambda text: struct.pack("<Q", len(text)) + text
def hear(size):
    got = b""
    while len(got) < size:
        more = store.recv(size - len(got))
        assert more, "the store closed the connection"
        got += more
    return got
def add(key, number):
    store.sendall(b"\4" + string(key) + struct.pack("<q", number))
    return struct.unpack("<q", hear(8))[0]
def set(key, value):
    store.sendall(b"\1" + string(key) + string(value))
def value():
    return hear(struct.unpack("<Q", hear(8))[0])
def compare_set(key, expected, desired):
    store.sendall(b"\2" + string(key) + string(expected) + string(desired))
    return value()
mine, popped = b"/mine" + os.environ["RANK"].encode(), 0
def everything(turn):
    global popped
    now = b"%d" % turn
    store.sendall(b"\x09" + string(b"/text") + string(b"x"))
    # Once it is free again, a COMPARE_SET of an earlier turn would take it.
    assert compare_set(mine, b"free" if turn else b"", now) == now, "a COMPARE_SET took effect twice, or never"
    set(mine, b"free")
    store.sendall(b"\x0e" + string(b"/queue") + string(now) + b"\x0f" + string(b"/queue"))
    assert struct.unpack("<q", hear(8))[0] > 0, "a QUEUE_POP took effect twice"
    popped += int(value())
store.sendall(b"\0" + struct.pack("<I", 0x3C85F7CE))
kind, _, last = sys.argv[1].rpartition("=")
turns = -1
for turn in itertools.count() if kind else range(int(last)):
    if kind and os.path.exists(last): break
    turns = turn
    add(b"/sum", 1)
    if sys.argv[2:] == ["all"]: everything(turn)
turns += 1
print("begun", flush=True)
if add(b"/here", 1) == int(os.environ["WORLD_SIZE"]): set(b"/all", b"x")
store.sendall(b"\6" + struct.pack("<Q", 1) + string(b"/all"))
assert hear(1) == b"\0"
if sys.argv[2:] == ["all"]:
    store.sendall(b"\3" + string(b"/text"))
    assert len(value()) == add(b"/sum", 0), "an APPEND took effect twice, or never"
    store.sendall(b"\x10" + string(b"/queue"))
    assert struct.unpack("<q", hear(8))[0] == 0, "a QUEUE_PUSH took effect twice"
    print("turns", turns, "pushed", turns * (turns - 1) // 2, "popped", popped, end=" ")
print("sum", add(b"/sum", 0))
"""


def check_counts(case, text, num_workers):
    """Checks the output of workers with "all": each request took effect once. Returns the number of all workers'
         turns."""
    found = [list(map(int, each)) for each in re.findall(r"turns (\d+) pushed (\d+) popped (\d+) sum (\d+)", text)]
    case.assertEqual(len(found), num_workers, text)
    turns, pushed, popped, sums = zip(*found)
    case.assertEqual(set(sums), {sum(turns)}, text)
    case.assertEqual(sum(popped), sum(pushed), text)
    return sum(turns)
