# SPDX-License-Identifier: Apache-2.0
# The program of the parity cases. It prints its rank on both streams, and leaves its arguments and environment in
# $PARITY_OUT. Then it does what its first argument says.
import gc
import json
import os
import signal
import sys
import time

RANK = os.environ.get("RANK", "?")
ATTEMPT = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2)


def report():
    path = os.path.join(os.environ["PARITY_OUT"], f"{ATTEMPT}-{RANK}.json")
    with open(path + "~", "w") as f:
        json.dump({"argv": sys.argv, "name": __name__, "python": sys.executable,
                   "write_through": sys.stdout.write_through,
                   "own_session": os.getsid(0) == os.getpid(), "is_warm": gc.get_freeze_count() > 0,
                   "environment": dict(os.environ)}, f)
    os.rename(path + "~", path)


def all_are_here():
    reports = [name for name in os.listdir(os.environ["PARITY_OUT"]) if name.startswith(ATTEMPT + "-")]
    return len([name for name in reports if name.endswith(".json")]) == int(os.environ["WORLD_SIZE"])


def main(words):
    task = words[0] if words else ""
    if task == "wait":  # waits for the signal that the test sends
        signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    report()
    print("out", RANK, "apple", flush=True)
    sys.stderr.write(f"err {RANK} pear\n")  # one write, so that the line stays in one piece
    while task in ("exit", "raise", "kill") and not all_are_here():
        time.sleep(0.01)
    if task == "wait":
        print("got", signal.Signals(signal.sigwait(SIGNALS)).name, flush=True)
    elif task == "exit" and RANK == words[2]:
        sys.exit(int(words[1]))
    elif task == "raise" and RANK == words[1]:
        raise RuntimeError("boom")
    elif task == "kill" and RANK == words[2]:
        os.kill(os.getpid(), int(words[1]))
    elif task == "fail-first" and ATTEMPT == "0":
        sys.exit(5)
    if task in ("exit", "raise", "kill"):
        time.sleep(600)  # until the launcher stops this worker


if __name__ == "__main__":
    main(sys.argv[1:])
