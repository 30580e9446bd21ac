#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tests FlatOptimizer and clipping against torch.optim and clip_grad_norm_ on the same gradients: float64 to 1e-12,
float32 to 1e-5 per tensor. Tests GradScaler against torch.amp's. Runs on PyTorch's Python."""
import itertools
import os
import subprocess
import sys

import ranks
import runner  # noqa: E402, found by ranks

ranks.skip_without_pytorch()
if os.path.realpath(sys.prefix) != os.path.realpath(os.path.join(ranks.SOURCE, ".venv")):
    os.execv(ranks.PYTHON, [ranks.PYTHON, "-B", *sys.argv])
import torch  # noqa: E402

WORKER = os.path.join(ranks.BIN, "optim_worker")
TOLERANCE = {torch.float64: 1e-12, torch.float32: 1e-5}
SHAPES = [(3, 5), (7,), (2, 3, 3, 3), (1, 1), (300, 11), (64,), (5, 1)]
NUM_STEPS = 8
TORCH_OPTIMIZERS = {"sgd": torch.optim.SGD, "adam": torch.optim.Adam, "adamw": torch.optim.AdamW}

CASES = [
    ("sgd", "lr=0.1"),
    ("sgd", "lr=0.1,momentum=0.9"),
    ("sgd", "lr=0.1,momentum=0.9,dampening=0.3,weight_decay=0.01"),
    ("sgd", "lr=0.1,momentum=0.8,nesterov=1,weight_decay=0.1,1.weight_decay=0"),
    ("sgd", "lr=0.1,momentum=0.9,maximize=1"),
    ("adam", "lr=0.01"),
    ("adam", "lr=0.01,beta1=0.8,beta2=0.99,eps=1e-6,weight_decay=0.1"),
    ("adam", "lr=0.01,amsgrad=1,1.lr=0.1"),
    ("adamw", "lr=0.01"),
    ("adamw", "lr=0.01,weight_decay=0.3,1.weight_decay=0"),
    ("adamw", "lr=0.01,weight_decay=0.1,amsgrad=1,maximize=1"),
    ("adamw", "lr=0.01,clip=0.5,norm_type=2"),
    ("sgd", "lr=0.1,clip=5,norm_type=1"),
    ("sgd", "lr=0.1,clip=0.1,norm_type=inf"),
    ("sgd", "lr=0.1,clip=1e9,norm_type=2"),
]


def dtypes_of(dtype):
    return [torch.float64 if dtype == "float64" or dtype == "mixed" and i % 2 == 0 else torch.float32
            for i in range(len(SHAPES))]


def make_inputs(seed):
    """Returns initial values, and for each step and parameter a gradient or None. float32 can hold all numbers."""
    generator = torch.Generator().manual_seed(seed)
    draw = lambda shape: torch.randn(shape, generator=generator).double()  # noqa: E731
    initial = [draw(shape) for shape in SHAPES]
    # One parameter gets its first gradient late, another one gets gradients only in some steps.
    has = lambda step, i: not (i == 2 and step < 2 or i == 4 and step % 3 == 1)  # noqa: E731
    return initial, [[draw(shape) if has(step, i) else None for i, shape in enumerate(SHAPES)]
                     for step in range(NUM_STEPS)]


def write_inputs(path, initial, gradients):
    with open(path, "wb") as f:
        for values in initial:
            f.write(values.numpy().tobytes())
        for each in itertools.chain.from_iterable(gradients):
            f.write(torch.tensor(0.0 if each is None else 1.0, dtype=torch.float64).numpy().tobytes())
            if each is not None:
                f.write(each.numpy().tobytes())


def group_settings(settings, group):
    found = {}
    for key, value in settings.items():
        prefix, _, name = key.rpartition(".")
        if prefix in ("", str(group)) and name not in ("clip", "norm_type"):
            found[name] = value
    betas = found.pop("beta1", 0.9), found.pop("beta2", 0.999)
    for flag in ("amsgrad", "maximize", "nesterov"):
        if flag in found:
            found[flag] = bool(found[flag])
    return {**found, **({"betas": betas} if betas != (0.9, 0.999) else {})}


def train_with_pytorch(dtype, rule, settings, initial, gradients):
    """Returns the output that the worker must have, made by torch.optim: names and tensors."""
    parameters = [torch.nn.Parameter(v.to(d, copy=True)) for v, d in zip(initial, dtypes_of(dtype))]
    groups = [{"params": [p for p in parameters if (p.dim() == 1) == bool(g)], **group_settings(settings, g)}
              for g in (0, 1)]
    optimizer = TORCH_OPTIMIZERS[rule](groups, foreach=False)
    norm = torch.zeros(())
    for step in gradients:
        for parameter, gradient in zip(parameters, step):
            parameter.grad = None if gradient is None else gradient.to(parameter.dtype)
        if "clip" in settings:
            norm = torch.nn.utils.clip_grad_norm_(parameters, settings["clip"], settings["norm_type"])
        optimizer.step()
    expected = [(f"p{i}", p.detach()) for i, p in enumerate(parameters)]
    state = {f"p{i}.{name}": value for i, p in enumerate(parameters)
             for name, value in optimizer.state[p].items() if value is not None}
    return expected, state, norm


def autocast_results(dtype, p):
    """Returns the results that run_autocast_case() must have, made by PyTorch. Sets the parameters' gradients."""
    torch.set_num_threads(1)
    for parameter in p[:5]:
        parameter.requires_grad_(True)
    with torch.autocast("cpu", dtype=dtype):
        conv = torch.conv2d(p[5], p[0], p[1])
        h = torch.relu(conv)
        first = torch.nn.functional.linear(h.flatten(1), p[2], p[3])
        second = torch.tanh(torch.matmul(first, p[4]))
        third = torch.matmul(second, p[4])
        with torch.autocast("cpu", enabled=False):
            full = torch.matmul(third.float(), p[4])
        narrow = torch.nn.functional.linear(full, p[4])
        both = torch.cat([full, narrow], 1)
        soft = torch.softmax(both, 1)
        loss = torch.nn.functional.mse_loss(soft, torch.zeros_like(soft)) + torch.log_softmax(soft, 1).pow(2).mean()
    loss.backward()
    return [conv, h, first, second, third, full, narrow, both, soft, loss]


class Optimizers(ranks.RanksTest):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        env = {k: v for k, v in os.environ.items() if k != "WORLD_SIZE"}
        cls.worker = subprocess.Popen([WORKER, "rules"], env=env, text=True, stdin=subprocess.PIPE,
                                      stdout=subprocess.PIPE)

    @classmethod
    def tearDownClass(cls):
        cls.worker.stdin.close()
        cls.worker.wait(timeout=30)
        cls.worker.stdout.close()

    def check_close(self, what, ours, theirs):
        error = (ours - theirs.double()).norm().item()
        limit = (self.tolerance or TOLERANCE[theirs.dtype]) * max(theirs.double().norm().item(), 1e-300)
        self.assertLessEqual(error, limit, what)

    def compare(self, dtype, rule, text, seed):
        inputs, outputs = (os.path.join(self.directory, name) for name in ("in", "out"))
        initial, gradients = make_inputs(seed)
        write_inputs(inputs, initial, gradients)
        shapes = ",".join("x".join(map(str, shape)) for shape in SHAPES)
        self.worker.stdin.write(f"{dtype} {rule} {text} {shapes} {NUM_STEPS} {inputs} {outputs}\n")
        self.worker.stdin.flush()
        names = self.worker.stdout.readline().split()
        self.assertTrue(names, "the worker has answered")
        settings = {k: float(v) for k, v in (item.split("=") for item in text.split(","))}
        # A norm over both dtypes is only as exact as the less exact one.
        self.tolerance = TOLERANCE[torch.float32] if dtype == "mixed" and "clip" in settings else None
        expected, state, norm = train_with_pytorch(dtype, rule, settings, initial, gradients)

        with open(outputs, "rb") as f:
            values = torch.frombuffer(bytearray(f.read()), dtype=torch.float64)
        at = 0

        def take(like):
            nonlocal at
            part = values[at:at + like.numel()].reshape(like.shape)
            at += like.numel()
            return part

        for name, theirs in expected:
            self.check_close(name, take(theirs), theirs)
        for name in names:
            if rule == "sgd" and name.endswith(".step"):  # torch.optim's SGD counts no steps
                self.assertGreater(take(torch.zeros(())).item(), 0)
                continue
            theirs = state.pop(name)
            self.check_close(name, take(theirs), theirs)
        self.assertEqual(state, {}, "PyTorch has more state")
        self.check_close("norm", take(norm), norm)
        self.assertEqual(at, len(values))

    def test_rules_groups_state_and_clipping(self):
        for seed, ((rule, text), dtype) in enumerate(itertools.product(CASES, ("float64", "float32", "mixed"))):
            with self.subTest(rule=rule, settings=text, dtype=dtype):
                self.compare(dtype, rule, text, seed)

    def test_scaler_follows_pytorchs(self):
        for interval, pattern in ((2000, "..."), (2, "....i..n......"), (3, "iiin....i.......in...")):
            with self.subTest(interval=interval, pattern=pattern):
                self.worker.stdin.write(f"scaler {interval} {pattern}\n")
                self.worker.stdin.flush()
                ours = [float(word) for word in self.worker.stdout.readline().split()]
                scaler = torch.amp.GradScaler("cpu", growth_interval=interval)
                parameter = torch.nn.Parameter(torch.ones(3))
                optimizer = torch.optim.SGD([parameter], lr=0.1, momentum=0.9)
                theirs = []
                for step, letter in enumerate(pattern):
                    if step == len(pattern) // 2:
                        saved, scaler = scaler.state_dict(), torch.amp.GradScaler("cpu")
                        scaler.load_state_dict(saved)
                    optimizer.zero_grad()
                    x = torch.tensor([0.1, -0.2, 3e-6]) * (step + 1)
                    scaler.scale((parameter * x).sum()).backward()
                    if letter != ".":
                        parameter.grad[1] = float({"i": "inf", "n": "nan"}[letter])
                    scaler.step(optimizer)
                    scaler.update()
                    state = scaler.state_dict()
                    theirs += [state["scale"], state["_growth_tracker"], *parameter.detach().double().tolist()]
                self.assertEqual(len(ours), len(theirs))
                for i, (a, b) in enumerate(zip(ours, theirs)):
                    limit = 1e-6 * max(abs(b), 1) if i % 5 > 1 else 0
                    self.assertLessEqual(abs(a - b), limit, f"step {i // 5}, number {i % 5}")
                self.assertGreater(len(set(theirs[::5])), 1 if len(pattern) > 3 else 0)

    def test_errors_tied_parameters_autograds_check_and_autocast(self):
        subprocess.run([WORKER, "checks"], env={k: v for k, v in os.environ.items() if k != "WORLD_SIZE"},
                       check=True, timeout=60)

    def test_autocast_computes_pytorchs_values_in_pytorchs_dtypes(self):
        inputs, outputs = (os.path.join(self.directory, name) for name in ("cast-in", "cast-out"))
        for name, dtype in (("bf16", torch.bfloat16), ("fp16", torch.float16)):
            with self.subTest(dtype=name):
                generator = torch.Generator().manual_seed(11)
                shapes = (4, 1, 3, 3), (4,), (10, 64), (10,), (10, 10), (5, 1, 6, 6)
                p = [torch.randn(shape, generator=generator) * 0.3 for shape in shapes]
                with open(inputs, "wb") as f:
                    for values in p:
                        f.write(values.double().numpy().tobytes())
                self.worker.stdin.write(f"autocast {name} {inputs} {outputs}\n")
                self.worker.stdin.flush()
                dtypes = self.worker.stdout.readline().split()
                theirs = autocast_results(dtype, p)
                names = {torch.float32: "Float", torch.bfloat16: "BFloat16", torch.float16: "Half"}
                self.assertEqual(dtypes, [names[each.dtype] for each in theirs])
                self.assertEqual(set(dtypes), {"Float", names[dtype]})
                with open(outputs, "rb") as f:
                    ours = torch.frombuffer(bytearray(f.read()), dtype=torch.float64)
                theirs += [each.grad for each in p[:5]]
                parts = ours.split([each.numel() for each in theirs])
                for i, (a, b) in enumerate(zip(parts, theirs, strict=True)):
                    self.assertTrue(torch.equal(a, b.detach().double().flatten()), f"tensor {i}: {a}, PyTorch's {b}")

    def test_the_grad_scaler_over_ddps_buckets_is_pytorchs_and_overflows_there(self):
        scaler = torch.amp.GradScaler("cpu", growth_interval=2)
        parameter = torch.nn.Parameter(torch.ones(3))
        optimizer = torch.optim.SGD([parameter], lr=0.1)
        expected = []
        for letter in ".i...i..ii..":
            scaler.scale((parameter * float("inf" if letter == "i" else "1")).sum()).backward()
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
            state = scaler.state_dict()
            expected += [state["scale"], state["_growth_tracker"]]
        for world in (1, 2, 4):
            with self.subTest(world=world):
                for output in self.run_ranks(world, [WORKER, "ddp"]):
                    line, = (line for line in output.splitlines() if line.startswith("scaler "))
                    self.assertEqual([float(word) for word in line.split()[1:]], expected)


if __name__ == "__main__":
    runner.main()
