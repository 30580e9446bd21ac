# SPDX-License-Identifier: Apache-2.0
"""Measures memory, descriptors and threads of a job's ddprun, warm helper and warden, from one of its workers. A leak
shows over many restarts."""
import os

SLACK_KB = 2048  # growth that an allocator may cause; a leak over hundreds of rounds is larger


def _status(pid):
    with open(f"/proc/{pid}/status", encoding="ascii", errors="replace") as file:
        return dict(line.rstrip("\n").split(":\t", 1) for line in file if ":\t" in line)


def _below(pid):
    """Yields (pid, status) of all processes below `pid`."""
    for thread in os.listdir(f"/proc/{pid}/task"):
        with open(f"/proc/{pid}/task/{thread}/children", encoding="ascii") as file:
            for child in file.read().split():
                yield int(child), _status(child)
                yield from _below(child)


def use():
    """Returns {"ddprun", "warm helper", "warden": {"kB", "descriptors", "threads"}, "zombies": their number}."""
    warden = os.getppid()
    ddprun = int(_status(warden)["PPid"])
    pids, zombies = {"ddprun": ddprun, "warden": warden}, 0
    for pid, status in _below(ddprun):
        zombies += status["State"].startswith("Z")
        with open(f"/proc/{pid}/cmdline", encoding="utf-8", errors="replace") as file:
            if file.read().startswith("ddprun-warm:"):
                pids["warm helper"] = pid
    found = {"zombies": zombies}
    for name, pid in pids.items():
        status = _status(pid)
        found[name] = {"kB": int(status["VmRSS"].split()[0]), "descriptors": len(os.listdir(f"/proc/{pid}/fd")),
                       "threads": int(status["Threads"])}
    return found


def growth(uses):
    """Returns a line for each value that has grown; empty: none has. `uses`: the results of use(), one for each round.
    Compares the least of the last three with an early one, because a single one may count what is just closing."""
    early, last = uses[len(uses) // 4], uses[-3:]
    least_of = lambda value_of: min(value_of(each) for each in last)  # noqa: E731
    slack_kb = float("inf") if os.environ.get("DDPRUN_SANITIZE") else SLACK_KB  # a sanitizer keeps what is freed
    zombies = least_of(lambda each: each["zombies"])
    grown = [f"{zombies} zombies"] if zombies > early["zombies"] else []
    for name in ("ddprun", "warm helper", "warden"):
        for what, slack in (("kB", slack_kb), ("descriptors", 0), ("threads", 0)):
            now = least_of(lambda each: each[name][what])  # noqa: B023
            if now > early[name][what] + slack:
                grown.append(f"{name}: {what} {early[name][what]} -> {now}")
    return grown
