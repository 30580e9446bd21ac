# SPDX-License-Identifier: Apache-2.0
"""Memory, descriptors and threads of a job's ddprun, warm helper and warden, as one of its workers sees them. A leak shows
over many restarts."""
import os

SLACK_KB = 2048  # an allocator's, not a leak's over hundreds of rounds


def _status(pid):
    with open(f"/proc/{pid}/status", encoding="ascii", errors="replace") as file:
        return dict(line.rstrip("\n").split(":\t", 1) for line in file if ":\t" in line)


def _below(pid):
    """(pid, status) of all processes below this one."""
    for thread in os.listdir(f"/proc/{pid}/task"):
        with open(f"/proc/{pid}/task/{thread}/children", encoding="ascii") as file:
            for child in file.read().split():
                yield int(child), _status(child)
                yield from _below(child)


def use():
    """{"ddprun", "warm helper", "warden": {"kB", "descriptors", "threads"}, "zombies": how many}"""
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
    """How each of the last of these has more than an early one, one line for each; empty: nothing grows. `uses`: one a
    round. A single one may have what is only just closed."""
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
