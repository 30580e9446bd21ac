#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The steps of scripts/gpu_check.sh.

    scripts/gpu_steps.py BIN [--deadline S] [--jobs N] [--only REGEX] [--without-torch] [SECTION…]

Run it with the Python whose PyTorch is the peer; BIN is the folder of the programs. Each step has its own
time limit, and leaves no process behind. Output lines that are JSON objects are the step's
figures. $OUT (default .gpu/out) gets results.json and each step's log.
"""
import argparse
import concurrent.futures
import dataclasses
import datetime
import glob
import importlib.util
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
PYTHON = sys.executable


@dataclasses.dataclass
class Step:
    name: str
    limit: int  # seconds
    command: list
    libraries: str = "native"  # in LD_LIBRARY_PATH: "native": NCCL and the CUDA runtime; "torch": LibTorch; "": nothing
    environment: dict = dataclasses.field(default_factory=dict)
    wanted: object = (0,)  # exit statuses of a success
    says: str = ""  # a pattern that the output must match
    peer: bool = False  # a program of the peer, whose failure doesn't fail the check
    may_skip: bool = False  # whether it may skip cases that need more GPUs
    find: object = None  # a function that makes the figures, from those in the output and the step's folder


class Machine:
    """The programs, the PyTorch and the GPUs of this machine."""

    def __init__(self, programs, cards):
        """`cards`: lines "name, driver's version"."""
        self.programs = os.path.abspath(programs)
        found = importlib.util.find_spec("torch")
        self.torch = os.path.dirname(found.origin) if found and found.origin else ""
        site = os.path.dirname(self.torch)
        wheels = sorted(os.path.dirname(path) for name in ("libnccl.so.2", "libcudart.so.*")
                        for path in glob.glob(f"{site}/nvidia/*/lib/{name}"))
        self.paths = {"native": ":".join(dict.fromkeys(wheels)), "torch": os.path.join(self.torch, "lib"), "": ""}
        self.cards, self.drivers = zip(*(line.rsplit(", ", 1) for line in cards))
        self.num_gpus = len(cards)

    def program(self, name):
        return os.path.join(self.programs, name)

    def ddprun(self, ranks, *command):
        return [self.program("ddprun"), "--standalone", f"--nproc-per-node={ranks}", "--log-line-prefix-template=", *command]

    def torchrun(self, ranks, *command):
        return [PYTHON, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}", *command]

    def environment(self, step):
        base = {k: v for k, v in os.environ.items() if k not in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")}
        path = ":".join(filter(None, (self.paths[step.libraries], base.get("LD_LIBRARY_PATH"))))
        return {**base, **({"LD_LIBRARY_PATH": path} if path else {}), "PYTHON_EXEC": PYTHON, "PYTHONUNBUFFERED": "1",
                "PYTHONDONTWRITEBYTECODE": "1", "XDG_CONFIG_HOME": "/nonexistent", **step.environment}


# Variables for several ranks on GPU 0. NCCL before 2.30.3 takes ranks with different host ids for different machines.
SHARED = {"CUDA_VISIBLE_DEVICES": "0", "DDPRUN_TEST_GPU": "shared", "NCCL_SOCKET_IFNAME": "lo", "NCCL_IB_DISABLE": "1"}


def own_host(*command):
    return ["sh", "-c", 'export NCCL_HOSTID=rank$RANK; exec "$@"', "sh", *command]


def own_host_and_gpu_0(*command):
    """Returns the command of a PyTorch program with its own NCCL host id, on GPU 0."""
    return ["sh", "-c", 'export NCCL_HOSTID=rank$RANK LOCAL_RANK=0; exec "$@"', "sh", *command]


def doctor_figures(figures, num_gpus):
    """Returns the checks' verdicts. Raises ValueError if a check found nothing out. Its verdict doesn't matter."""
    found = {each["check"]: each for each in figures[-1]["findings"]}
    wrong = [name for name, each in found.items()
             if each["verdict"] == "unknown" or "can't be used" in each["seen"] or (name == "gpu_driver" and each["verdict"] == "skipped")]
    if not found["gpu_count"]["seen"].startswith(f"{num_gpus} answer"):
        wrong.append("gpu_count")
    if wrong:
        raise ValueError("not found out: " + ", ".join(wrong))
    return [{name: each["verdict"] for name, each in found.items() if each["verdict"] != "skipped"}]


def torch_figures(figures, num_gpus):
    if figures[-1]["gpus"] != num_gpus:
        raise ValueError(f"PyTorch has {figures[-1]['gpus']} GPUs, nvidia-smi {num_gpus}")
    return figures


def train_figures(_, folder, goes_on=False):
    """Returns the figures of train.json. `goes_on`: the run must have begun from a checkpoint."""
    with open(os.path.join(folder, "train.json"), encoding="utf-8") as f:
        found = json.load(f)
    if found["backend"] != "nccl" or not found["device"].startswith("cuda"):
        raise ValueError(f"it trained by {found['backend']} on {found['device']}")
    if goes_on and found["first_step"] <= 1:
        raise ValueError("it began anew")
    figures = {**{key: found[key] for key in ("world_size", "backend", "device", "test_accuracy", "wall_seconds")},
               "samples_per_second": round(found["epochs"][-1]["samples_per_second"])}
    step = found["steps"]  # has no times if no step averages gradients
    if step["step"]["median"] > 0:
        figures["data_share"] = round(step["loader"]["median"] / step["step"]["median"], 3)
    return [figures]


def look(m):
    yield Step("smi", 30, ["nvidia-smi"])
    yield Step("torch", 60, [PYTHON, "-c", "import json, torch; print(json.dumps({'torch': torch.__version__, 'gpus': torch.cuda.device_count(), "
                             "'nccl': '.'.join(map(str, torch.cuda.nccl.version()))}))"], "",
               find=lambda figures, _: torch_figures(figures, m.num_gpus))
    yield Step("libraries", 30, [m.program("nccl_bandwidth"), "--version"], says="^NCCL ")
    yield Step("launcher", 30, m.ddprun("gpu", "--dry-run", m.program("nccl_host")), "")
    yield Step("doctor", 60, [m.program("ddprunctl"), "doctor", "--only=gpu,nccl", "--timeout=30", "--json"], wanted=range(4),
               find=lambda figures, _: doctor_figures(figures, m.num_gpus))


def one(m):
    """Yields the steps with a rank on each GPU."""
    n, train = m.num_gpus, [m.program("train"), f"--data={ROOT}/data/digits"]
    yield Step("communicator", 120, [m.program("nccl_communicator_gpu_test")], may_skip=True)
    yield Step("worker", 90, m.ddprun(n, m.program("gpu_worker")), "torch")
    yield Step("train", 60, m.ddprun(n, *train, "--epochs=3", "--json=train.json"), "torch", find=train_figures)
    yield Step("train_bf16_loader", 60, m.ddprun(n, *train, "--epochs=3", "--amp=bf16", "--batch-norm", "--optimizer=adam",
                                                 "--loader-threads=2", "--json=train.json"), "torch", find=train_figures)
    yield Step("train_fp16_clip", 60, m.ddprun(n, *train, "--epochs=1", "--amp=fp16", "--clip-norm=1", "--optimizer=adamw",
                                               "--json=train.json"), "torch", find=train_figures)
    zero = m.ddprun(n, *train, "--zero=2", "--optimizer=adamw", "--checkpoint-dir=saved", "--json=train.json")
    yield Step("train_zero2_checkpoint", 90, ["sh", "-c", '"$@" --epochs=1 && "$@" --epochs=2', "sh", *zero], "torch",
               find=lambda figures, folder: train_figures(figures, folder, goes_on=True))
    yield Step("graph", 60, m.ddprun(n, m.program("nccl_host"), "graph", "16"))
    yield Step("bandwidth", 60, m.ddprun(n, m.program("nccl_bandwidth")))


def nccl_version(m):
    """Returns the number of the NCCL version that nccl_bandwidth loads; 0: it isn't known."""
    try:
        said = subprocess.run([m.program("nccl_bandwidth"), "--version"], env=m.environment(Step("", 0, [])), text=True, timeout=10,
                              capture_output=True, check=False).stdout
    except (OSError, subprocess.TimeoutExpired):
        return 0
    return int((re.search(r"\((\d+)\)", said) or [0, 0])[1])


def two(m):
    """Yields the steps with two ranks on GPU 0, which check results, not speed."""
    host, train = m.program("nccl_host"), own_host(m.program("train"), f"--data={ROOT}/data/digits", "--epochs=1", "--json=train.json")
    yield Step("pair", 60, m.ddprun(2, m.program("nccl_pair_worker")), environment=SHARED)
    yield Step("worker", 90, m.ddprun(2, *own_host(m.program("gpu_worker"))), "torch", SHARED)
    yield Step("train", 60, m.ddprun(2, *train, "--backend=nccl"), "torch", SHARED, find=train_figures)
    yield Step("train_zero2_fp16", 60, m.ddprun(2, *train, "--backend=nccl", "--zero=2", "--optimizer=adamw", "--amp=fp16", "--clip-norm=1"),
               "torch", SHARED, find=train_figures)
    yield Step("train_sync_every", 60, m.ddprun(2, *train, "--backend=nccl", "--sync-every=4", "--optimizer=adam"), "torch", SHARED,
               find=train_figures)
    yield Step("falls_back", 60, m.ddprun(2, m.program("train"), f"--data={ROOT}/data/digits", "--epochs=1"), "torch",
               {"CUDA_VISIBLE_DEVICES": "0"}, says="using the host backend, not NCCL")
    yield Step("doctor_full", 60, m.ddprun(2, *own_host(m.program("ddprunctl"), "doctor", "--tier=full", "-v")), environment=SHARED,
               wanted=range(4), says="^(ok|warn) +all_reduce_nccl")
    yield Step("graph", 60, m.ddprun(2, *own_host(host, "graph", "16")), environment={**SHARED, "DDPRUN_TEST_GPU": "shared,watchdog_us=100"})
    # 3 ranks: with a power of two a division is exact, and nothing can differ.
    yield Step("average", 60, m.ddprun(3, *own_host(host, "average")), environment=SHARED)
    yield Step("absent", 60, m.ddprun(2, *own_host(host, "absent", "3", "8")), environment=SHARED)
    yield Step("die", 60, m.ddprun(2, "--max-restarts=1", *own_host(host, "die", "60")), environment=SHARED)
    threads = {"CUDA_VISIBLE_DEVICES": "0", "NCCL_MULTI_RANK_GPU_ENABLE": "1", "NCCL_NVLS_ENABLE": "0", "NCCL_MAX_CTAS": "4"}
    if nccl_version(m) >= 23003:
        yield Step("four_threads", 120, [m.program("nccl_communicator_gpu_test")], environment=threads)


def step(m):
    """Yields the steps that time training steps and optimisers in turn with PyTorch's."""
    n, torch_step = m.num_gpus, os.path.join(ROOT, "bench/sdk/step_ddp.py")
    for model, steps, repeats in (("resnet18", "30", 3), ("mlp", "100", 3), ("gpt2", "20", 1)):
        for i in range(1, repeats + 1):
            yield Step(f"{model}_ours_{i}", 60, m.ddprun(n, m.program("step_bench"), model, steps, "none", "cuda"), "torch")
            yield Step(f"{model}_torch_{i}", 60, m.torchrun(n, torch_step, model, steps, "none", "cuda"), "", peer=True)
    yield Step("adamw_ours", 60, m.ddprun(1, m.program("optimizer_bench"), "30", "cuda"), "torch")
    yield Step("adamw_torch", 60, [PYTHON, os.path.join(ROOT, "bench/sdk/optimizer_torch.py")], "", peer=True)
    yield Step("two_ours", 60, m.ddprun(2, *own_host(m.program("step_bench"), "resnet18", "20", "none", "cuda")), "torch", SHARED)
    yield Step("two_torch", 60, m.torchrun(2, "--no-python", *own_host_and_gpu_0(PYTHON, torch_step, "resnet18", "20", "none", "cuda")), "",
               SHARED, peer=True)


def host(m):
    """Yields the steps that time an all-reduce's cost for the thread that starts it. Two ranks share GPU 0."""
    sizes, alone, peer = "4096x200,65536x200,1048576x64,26214400x24", "4096x400,26214400x40", os.path.join(ROOT, "bench/nccl/host_time.py")
    yield Step("two_ours", 60, m.ddprun(2, *own_host(m.program("nccl_host"), "host", sizes)), environment=SHARED)
    yield Step("two_torch", 60, m.torchrun(2, "--no-python", *own_host_and_gpu_0(PYTHON, peer, sizes)), "", SHARED, peer=True)
    for name in ("sum", "average"):
        more = [alone] + ([name] if name == "average" else [])
        yield Step(f"one_ours_{name}", 40, m.ddprun(1, m.program("nccl_host"), "host", *more))
        yield Step(f"one_torch_{name}", 40, m.torchrun(1, peer, *more), "", peer=True)


def plain(m):
    """Yields PyTorch's programs under ddprun and torchrun. A rank dies or sleeps while the other waits on the GPU."""
    job = [PYTHON, os.path.join(ROOT, "tests/pytorch/jobs/restart.py"), "1", "nccl", "shared"]
    yield Step("ddp", 60, m.ddprun(m.num_gpus, os.path.join(ROOT, "bench/sdk/step_ddp.py"), "resnet18", "30", "none", "cuda"), "")
    yield Step("kill", 40, m.ddprun(2, "--max-restarts=1", "--no-python", *job), "", SHARED, says="attempt 1: rank 1 works")
    yield Step("warm", 60, m.ddprun(2, "--max-restarts=1", "--preload=torch,torch.distributed", "--no-python", *job, "fault"), "",
               {**SHARED, "LOGLEVEL": "INFO"}, says=r"(?s)(?=.*of round 2 run; 2 of 2 began warm)(?=.*attempt 1: rank 1 works)")
    hang = own_host_and_gpu_0(PYTHON, os.path.join(ROOT, "tests/pytorch/jobs/hang.py"), "nccl")
    yield Step("hang", 60, m.ddprun(2, "--hang-timeout=foreign=5s", *hang), "", {**SHARED, "HANG_SECONDS": "20"}, says="hang: rank 1 ")
    yield Step("hang_restart", 60, m.ddprun(2, "--max-restarts=0", "--hang-timeout=foreign=5s", "--hang-action=restart", *hang), "",
               {**SHARED, "HANG_SECONDS": "40"}, wanted=(124,), says="hang: rank 1 ")
    yield Step("kill_torchrun", 40, m.torchrun(2, "--max-restarts=1", "--no-python", *job), "", SHARED, peer=True)


def stress(m):
    """Yields a step whose watchdog looks a hundred times as often as usual."""
    often = {**SHARED, "DDPRUN_TEST_GPU": "shared,watchdog_us=100"}
    yield Step("watchdog", 60, m.ddprun(2, *own_host(m.program("nccl_host"), "stress", "4096", "10000000", "20")), environment=often)


SECTIONS = {"look": look, "one": one, "two": two, "step": step, "host": host, "plain": plain, "stress": stress}
NO_REASON = r" *$|-+$|ddprun exits with|  (host|rank|pid|time|others|output|ended by)  "  # report lines that give no reason
AT_ONCE = ("look", "one", "two", "plain")  # sections without times to compare, so their steps run side by side


def kill_marked(mark):
    """Kills all processes with the mark in their environment, also new ones. Returns those that are left after 5 s."""
    end = time.monotonic() + 5
    while True:
        found = []
        for path in glob.glob("/proc/[0-9]*/environ"):
            try:
                with open(path, "rb") as f:
                    if mark.encode() in f.read().split(b"\0"):
                        found.append(int(path.split("/")[2]))
                        os.kill(found[-1], signal.SIGKILL)
            except OSError:
                continue
        if not found or time.monotonic() > end:
            return found
        time.sleep(0.02)


def figures_of(text):
    for line in text.splitlines():
        if line.startswith("{"):
            try:
                yield json.loads(line)
            except ValueError:
                continue


def verdict(step, status, text, folder):
    """Returns the step's outcome, and its figures."""
    try:
        figures = list(figures_of(text))
        if status is None:
            return f"over its limit of {step.limit} s", figures
        if status not in step.wanted:
            return status if isinstance(status, str) else f"status {status}", figures
        skips = re.findall("SKIPPED: (.*)", text)
        if skips and not (step.may_skip and all("more ranks than GPUs" in each for each in skips)):
            return "skipped: " + skips[0], figures
        if step.says and not re.search(step.says, text, re.M):
            return f"it didn't say \"{step.says}\"", figures
        return "ok", step.find(figures, folder) if step.find else figures
    except Exception as error:  # one step's wrong figures must not end the others
        return f"no figures: {error}", []


class Run:
    def __init__(self, machine, out, deadline, begin=None):
        """`deadline`: seconds after `begin`, or from now on."""
        self.begin = begin or time.monotonic()
        self.machine, self.out, self.end = machine, out, self.begin + deadline
        self.results, self.lock = [], threading.Lock()
        os.makedirs(os.path.join(out, "logs"), exist_ok=True)

    def step(self, step):
        left = self.end - time.monotonic() - 3
        if left < min(step.limit, 10):
            self.add(step, "not run: the deadline", 0, [], "")
            return
        step.limit = int(min(step.limit, left))
        mark, log = f"GPU_STEP={step.name}.{os.getpid()}", os.path.join(self.out, "logs", step.name + ".txt")
        environment = {**self.machine.environment(step), "GPU_STEP": mark.partition("=")[2]}
        begin, process, status = time.monotonic(), None, None
        with tempfile.TemporaryDirectory(prefix="gpu_step.", ignore_cleanup_errors=True) as folder:
            with open(log, "wb") as f:
                try:
                    process = subprocess.Popen(step.command, cwd=folder, env=environment, stdin=subprocess.DEVNULL, stdout=f,
                                               stderr=subprocess.STDOUT, start_new_session=True)
                    status = process.wait(step.limit)
                except subprocess.TimeoutExpired:
                    process.kill()
                except OSError as error:
                    status = str(error)
            remain = kill_marked(mark)
            try:
                if process:
                    process.wait(5)
            except subprocess.TimeoutExpired:
                remain.append(process.pid)
            with open(log, encoding="utf-8", errors="replace") as f:
                text = f.read(1_000_000)
            outcome, figures = verdict(step, status, text, folder)
            if remain:
                outcome += f"; killed, but there: {sorted(set(remain))}"
        self.add(step, outcome, time.monotonic() - begin, figures, text)

    def add(self, step, outcome, seconds, figures, text):
        said = " ".join(json.dumps(each, ensure_ascii=False) for each in figures)
        lines = [f"{step.name}: {outcome}, {seconds:.1f} s" + (f": {said[:600]}" if said else "")]
        if outcome != "ok":
            lines += ["    | " + line[:240] for line in text.splitlines() if not re.match(NO_REASON, line)][-5:]
        with self.lock:
            self.results.append({"name": step.name, "outcome": outcome, "seconds": round(seconds, 1), "peer": step.peer, "figures": figures})
            print("\n".join(lines), flush=True)
            self.save()

    def save(self):
        m = self.machine
        found = {"date": datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%d"), "cards": m.cards, "driver": m.drivers[0],
                 "cores": os.cpu_count(), "seconds": round(time.monotonic() - self.begin), "steps": self.results}
        with open(os.path.join(self.out, "results.json"), "w", encoding="utf-8") as f:
            json.dump(found, f, indent=1, ensure_ascii=False)


def main():
    begin = time.monotonic()
    parser = argparse.ArgumentParser(description="The steps of scripts/gpu_check.sh.")
    parser.add_argument("programs", metavar="BIN", help="the folder of the programs")
    parser.add_argument("--deadline", type=int, default=540, metavar="S", help="of all steps; what doesn't fit isn't run")
    parser.add_argument("--jobs", type=int, default=3, metavar="N", help="steps at once where no time is compared")
    parser.add_argument("--only", default="", metavar="REGEX", help="only steps whose SECTION.NAME matches")
    parser.add_argument("--without-torch", action="store_true", help="no step that needs LibTorch")
    parser.add_argument("sections", nargs="*", metavar="SECTION", help=" ".join(SECTIONS))
    arguments = parser.parse_intermixed_args()
    unknown = set(arguments.sections) - set(SECTIONS)
    if unknown:
        parser.error(f"no section {', '.join(sorted(unknown))}; there are: {' '.join(SECTIONS)}")
    cards = subprocess.run(["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"], text=True, check=True,
                           stdout=subprocess.PIPE, timeout=60).stdout.strip().splitlines()
    machine = Machine(arguments.programs, cards)
    run = Run(machine, os.path.abspath(os.environ.get("OUT") or os.path.join(ROOT, ".gpu/out")), arguments.deadline, begin)
    started = []
    for section in arguments.sections or SECTIONS:
        with concurrent.futures.ThreadPoolExecutor(arguments.jobs if section in AT_ONCE else 1) as pool:
            for each in SECTIONS[section](machine):
                each.name = f"{section}.{each.name}"
                if re.search(arguments.only, each.name) and not (arguments.without_torch and each.libraries == "torch"):
                    started.append(pool.submit(run.step, each))
    for each in started:
        each.result()  # raises if run.step() has raised
    failed = [f"{each['name']} ({each['outcome']})" for each in run.results if each["outcome"] != "ok" and not each["peer"]]
    total = f"{len(run.results)} steps in {time.monotonic() - run.begin:.0f} s; {run.out}"
    print(f"gpu_check: FAILED: {'; '.join(failed)} ({total})" if failed else f"gpu_check: passed: {total}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
