# SPDX-License-Identifier: Apache-2.0
"""Imports PyTorch once for all ranks of a test, because an import costs seconds of a core. ranks.py starts this.

The first line of its output is {"error": null}, or why PyTorch can't be imported. Then each line of standard input is
a JSON object, answered in one line:

    {"serve": "127.0.0.1"}                        {"port": 4711}     a store there, until this process ends
    {"run": [{"argv": […], "env": {…}, "output": FILE}, …]}          Python programs, all at once, forked
                                                  {"codes": [0, …]}  when the last has ended
"""
import ctypes
import datetime
import json
import os
import runpy
import signal
import sys
import traceback

PR_SET_PDEATHSIG = 1


def fork(act):
    """Forks a child that ends after `act`, and at the latest with this process. Returns its pid."""
    with open("/proc/self/status") as f:
        assert "\nThreads:\t1\n" in f.read(), "a fork copies one thread alone"
    child = os.fork()
    if child:
        return child
    code = 1
    try:
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        act()
        code = 0
    except SystemExit as ends:
        code = ends.code if isinstance(ends.code, int) else int(ends.code is not None)
    except BaseException:
        traceback.print_exc()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def serve(address):
    from torch.distributed import TCPStore
    read_end, write_end = os.pipe()

    def act():
        store = TCPStore(address, 0, is_master=True, wait_for_workers=False, timeout=datetime.timedelta(seconds=60))
        os.write(write_end, f"{store.port}\n".encode())
        while True:
            signal.pause()

    fork(act)
    os.close(write_end)
    with open(read_end) as f:
        return {"port": int(f.readline())}


def run(programs):
    import torch._dynamo  # noqa: F401, DistributedDataParallel asks it whether it compiles

    def program(argv, env, output):
        file = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(file, 1)
        os.dup2(file, 2)
        os.environ.clear()
        os.environ.update(env)
        sys.argv = argv
        sys.path.insert(0, os.path.dirname(argv[0]))
        runpy.run_path(argv[0], run_name="__main__")

    children = [fork(lambda: program(**each)) for each in programs]
    return {"codes": [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]}


def main():
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    error = None
    try:
        import torch.distributed  # noqa: F401
    except Exception as reason:
        error = str(reason).strip().splitlines()[-1]
    print(json.dumps({"error": error}), flush=True)
    for line in sys.stdin:
        command = json.loads(line)
        answer = serve(command["serve"]) if "serve" in command else run(command["run"])
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
