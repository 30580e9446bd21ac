# SPDX-License-Identifier: Apache-2.0
"""The rows about the worker SDK: training steps, and its other costs for a training."""
import json
import os
import subprocess
import tempfile

import measure
from row import OURS, Goal, Row

SYNCHRONOUS = "synchronous save"
STALL = "training thread stalls (ms)"


def _checkpoint(mode):
    def side():
        with tempfile.TemporaryDirectory(dir=os.path.dirname(measure.BIN)) as directory:
            argv = [measure.program("checkpoint_bench", "configure with LibTorch: scripts/setup.sh minimal"), mode, directory]
            done = subprocess.run(argv, env=measure.environment(), stdin=subprocess.DEVNULL, text=True,
                                  capture_output=True, timeout=300)
        measure.check(argv, done.returncode, done.stderr)
        found = json.loads(done.stdout)
        return {STALL: found["stall_ms"], "until it is on disk (ms)": found["write_ms"]}
    return side


def _checkpoint_row():
    return Row("checkpoint", "a checkpoint of 100 MB in 50 tensors: what `save()` costs the training thread",
               {OURS: _checkpoint("async"), SYNCHRONOUS: _checkpoint("sync")}, [Goal(STALL, 0.1, SYNCHRONOUS)], repeats=5,
               note="`CheckpointOptions::async` on and off, median of 7 saves after the first; "
                    "the writing thread's time isn't counted")


TORCH = "torch::optim::AdamW"
STEP = "step, over DDP's buckets (ms)"
ALONE = "step, without DDP (ms)"


def _adamw_sides():
    """Returns the row's sides. One program runs both in turn, step by step; each repetition starts it once."""
    runs = []

    def ours():
        runs.append(measure.json_of(_bench("optimizer_bench"), OMP_NUM_THREADS="1"))
        return {STEP: runs[-1]["buckets_ms"], ALONE: runs[-1]["tensors_ms"]}

    def peer():
        if not runs:
            raise measure.Missing("optimizer_bench has not run")
        return {STEP: runs[-1]["torch_ms"], ALONE: runs[-1]["torch_ms"]}

    return {OURS: ours, TORCH: peer}


def _adamw_row():
    return Row("adamw", "AdamW's step, 10 M float32 parameters in 200 tensors, one thread", _adamw_sides(),
               [Goal(STEP, 0.4, TORCH)], note="both in one process, in turn, step by step; medians of 30 steps")


PLAIN, STAGE_2 = "plain DDP", "ZeRO-2"
STATE = "optimiser's state per rank (MB)"


def _zero_row():
    def side(stage):
        def once():
            found = _under_ddprun(4, _bench("zero_bench", str(stage), "12"))
            return {STATE: found["state_mb"], "private memory that it adds (MB)": found["added_mb"],
                    "memory for gradients per rank (MB)": found["gradient_mb"], "step (ms)": found["step_ms"]}
        return once
    return Row("zero", "AdamW over 10.5 M parameters on 4 ranks, ZeRO-1 beside plain DDP and ZeRO-2",
               {OURS: side(1), PLAIN: side(0), STAGE_2: side(2)}, [Goal(STATE, 0.3, PLAIN)], repeats=3,
               note="`DdpOptions::zero`. Added memory: from before the optimiser to after three steps, "
                    "activations included. Medians of 12 steps after 3")


GLOO = "Python DDP, gloo"
STEP_MS = "median step (ms)"


def _bench(program, *arguments):
    return [measure.program(program, "configure with LibTorch: scripts/setup.sh minimal"), *arguments]


def _step_bench(*arguments):
    return _bench("step_bench", *arguments)


def _twin(*arguments):
    return [os.path.join(measure.HERE, "sdk/step_ddp.py"), *arguments]


def _under_ddprun(num_ranks, program):
    """Runs a program with one thread per rank under ddprun. Returns its JSON output."""
    launcher = [measure.program("ddprun"), "--standalone", f"--nproc_per_node={num_ranks}", "--log-line-prefix-template="]
    return measure.json_of(launcher + program, OMP_NUM_THREADS="1")


def _under_torchrun(num_ranks, script):
    launcher = measure.torchrun() + ["--standalone", f"--nproc_per_node={num_ranks}"]
    return measure.json_of(launcher + script, OMP_NUM_THREADS="1")


def _ours_on(num_ranks, *arguments):
    return _under_ddprun(num_ranks, _step_bench(*arguments))


def _gloo_on(num_ranks, *arguments):
    return _under_torchrun(num_ranks, _twin(*arguments))


def _resnet_row():
    return Row("resnet18", "a step of ResNet-18 on 32 × 32 images, 16 per rank, 2 ranks of one thread",
               {OURS: lambda: {STEP_MS: _ours_on(2, "resnet18", "10")["step_ms"]},
                GLOO: lambda: {STEP_MS: _gloo_on(2, "resnet18", "10")["step_ms"]}},
               [Goal(STEP_MS, 0.85, GLOO)],
               note="SGD with momentum; medians of 10 steps after 5; nearly all is LibTorch's convolutions, the same on "
                    "both sides")


ONE, TWO, TIMES = "1 rank (ms)", "2 ranks (ms)", "2 ranks ÷ 1 rank"


def _scaling_row():
    def side(measure_on):
        def once():
            one, two = (measure_on(n, "mlp", "40")["step_ms"] for n in (1, 2))
            return {ONE: one, TWO: two, TIMES: two / one}
        return once
    return Row("scaling", "a step of an MLP with 25 MiB of gradients, 64 rows per rank: 1 → 2 ranks of one thread",
               {OURS: side(_ours_on), GLOO: side(_gloo_on)}, [Goal(TIMES, 1.25)],
               note="2 ÷ 1.25 = 1.6 × the samples per second; medians of 40 steps after 5")


OVER_IDEAL = "step ÷ ideal"
PIPELINING = "torch.distributed.pipelining, gloo"


def _pipeline_row():
    def ours():
        found = _under_ddprun(2, _bench("pipeline_bench", "20"))
        return {STEP_MS: found["step_ms"], OVER_IDEAL: found["step_ms"] / found["ideal_ms"]}

    def theirs():
        return {STEP_MS: _under_torchrun(2, [os.path.join(measure.HERE, "sdk/pipeline_peer.py"), "20"])["step_ms"]}

    return Row("pipeline", "a step of an MLP of 12 layers of 768 × 768 in 2 stages by 1F1B, 512 rows in 8 micro-batches, 2 ranks of one thread",
               {OURS: ours, PIPELINING: theirs}, [Goal(OVER_IDEAL, 1.15), Goal(STEP_MS, 0.9, PIPELINING)],
               note="The ideal is the same micro-batches through both stages on one rank, ÷ 2, × "
                    "(1 + 1/8) for the bubble, in turn with the pipeline's steps. Medians of 20 "
                    "steps after 3")


NUM_HOSTS, RATE_MBIT, PORT = 4, 1000, 29400
# The time that the cable needs for the bytes that each host sends in a ring all-reduce of the MLP's gradients.
LINE_MS = 2 * (NUM_HOSTS - 1) / NUM_HOSTS * 6_550_878 * 4 * 8 / (RATE_MBIT * 1e6) * 1000
SHARE = "the cable's own time ÷ step"


def on_shaped_hosts(command_of, num_hosts=NUM_HOSTS, **more):
    """Runs `command_of(host)` on every host at once, each with a cable of RATE_MBIT. Returns the JSON line."""
    import netns
    try:
        hosts = netns.Hosts(num_hosts)
    except netns.Unavailable as reason:
        raise measure.Missing(str(reason)) from None
    with hosts:
        for host in hosts:
            host.run(["tc", "qdisc", "add", "dev", host.interface, "root", "tbf", "rate", f"{RATE_MBIT}mbit",
                      "burst", "128kb", "latency", "50ms"], check=True, timeout=10)
        running = [host.popen(command_of(host), env=measure.environment(OMP_NUM_THREADS="1", **more), text=True,
                              stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE) for host in hosts]
        ended = [process.communicate(timeout=300) for process in running]
        for process, (output, error) in zip(running, ended):
            measure.check(process.args, process.returncode, output + error)
        lines = [line for output, _ in ended for line in output.splitlines() if line.lstrip().startswith("{")]
        return json.loads(lines[-1])


def _shaped(compression):
    endpoint = f"10.77.0.1:{PORT}"

    def ours():
        found = on_shaped_hosts(lambda host: [
            measure.program("ddprun"), f"--nnodes={NUM_HOSTS}", f"--rdzv-endpoint={endpoint}", "--rdzv-id=shaped",
            "--log-line-prefix-template=", *_step_bench("mlp", "15", compression)])
        metrics = {STEP_MS: found["step_ms"]}
        if compression == "none":
            metrics[SHARE] = LINE_MS / found["step_ms"]
        return metrics

    def theirs():
        found = on_shaped_hosts(lambda host: measure.torchrun() + [
            f"--nnodes={NUM_HOSTS}", f"--node-rank={host.index}", "--master-addr=10.77.0.1", f"--master-port={PORT}",
            *_twin("mlp", "15", compression)], GLOO_SOCKET_IFNAME="eth0")
        return {STEP_MS: found["step_ms"]}

    return {OURS: ours, GLOO: theirs}


def _shaped_rows():
    what = "a step of that MLP on 4 hosts (namespaces), 1 Gb/s each"
    plain = Row("shaped", what, _shaped("none"), [Goal(STEP_MS, 1.0, GLOO), Goal(STEP_MS, LINE_MS / 0.9)], repeats=3,
                note=f"A ring sends 1.5 × the gradients: {LINE_MS:.0f} ms on a full cable, {LINE_MS / 0.9:.0f} ms at 0.9 "
                     "of its rate. Four ranks share two cores. Medians of 15 steps after 5")
    bf16 = Row("shaped-bf16", what + ", gradients sent as bfloat16",
               {OURS: _shaped("bf16")[OURS], GLOO: _shaped("none")[GLOO]}, [Goal(STEP_MS, 0.6, GLOO)], repeats=3,
               note="`--compress=bf16`'s hook; the peer sends float32, its default; half the "
                    "bytes are 157 ms of the cable")
    return [plain, bf16]


DTENSOR = "PyTorch's tensor parallel, gloo"


def _tensor_parallel_row():
    def ours():
        return {STEP_MS: _under_ddprun(2, _bench("tensor_parallel_bench", "40"))["step_ms"]}

    def theirs():
        return {STEP_MS: _under_torchrun(2, [os.path.join(measure.HERE, "sdk/tensor_parallel.py"), "40"])["step_ms"]}

    return Row("tensor-parallel", "a step of two linear layers (1,024 → 4,096 → 1,024), 64 rows, shared by 2 ranks of one thread",
               {OURS: ours, DTENSOR: theirs}, [Goal(STEP_MS, 0.8, DTENSOR)],
               note="with SGD; the peer is `ColwiseParallel` and `RowwiseParallel`; both move 256"
                    " KiB twice; medians of 40 steps after 5")


def rows():
    return [_resnet_row(), _scaling_row(), _tensor_parallel_row(), *_shaped_rows(), _pipeline_row(), _checkpoint_row(),
            _adamw_row(), _zero_row()]
