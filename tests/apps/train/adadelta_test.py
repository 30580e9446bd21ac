#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tests that adadelta_step gives torch.optim.Adadelta's parameters after each of 30 steps, in both precisions."""
import os
import subprocess
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
SOURCE = os.environ.get("DDPRUN_SOURCE_DIR", os.path.abspath(os.path.join(HERE, "../../..")))
VENV_PYTHON = os.path.join(SOURCE, ".venv/bin/python3")
sys.path.insert(0, os.path.join(SOURCE, "tests/support"))
import skips  # noqa: E402

try:
    import torch
except ImportError as error:
    if os.path.exists(VENV_PYTHON) and not os.environ.get("DDPRUN_IN_VENV"):
        os.environ["DDPRUN_IN_VENV"] = "1"
        os.execv(VENV_PYTHON, [VENV_PYTHON, *sys.argv])
    skips.skip_all(f"PyTorch for Python is not importable: {error}")

PROBE = os.path.join(os.environ["DDPRUN_BIN_DIR"], "adadelta_probe")
COUNT, STEPS, LR = 101, 30, 0.7


def words(tensor):
    return " ".join(repr(v) for v in tensor.double().tolist())


for name, dtype, tolerance in (("f64", torch.float64, 1e-14), ("f32", torch.float32, 1e-6)):
    torch.manual_seed(1)
    parameter = torch.nn.Parameter(torch.randn(COUNT, dtype=dtype))
    gradients = torch.randn(STEPS, COUNT, dtype=dtype) * 10.0 ** torch.randint(-6, 3, (STEPS, 1))
    text = f"{name} {LR} {COUNT} {STEPS}\n{words(parameter.detach())}\n"
    text += "\n".join(words(g) for g in gradients)
    done = subprocess.run([PROBE], input=text, text=True, stdout=subprocess.PIPE, timeout=30, check=True)
    ours = torch.tensor([[float(v) for v in line.split()] for line in done.stdout.splitlines()],
                        dtype=torch.float64)
    optimizer = torch.optim.Adadelta([parameter], lr=LR)
    for step in range(STEPS):
        parameter.grad = gradients[step].clone()
        optimizer.step()
        expected = parameter.detach().double()
        error = ((ours[step] - expected).norm() / expected.norm()).item()
        assert error <= tolerance, f"{name}, step {step + 1}: relative difference {error}"
    print(f"{name}: {STEPS} steps equal torch.optim.Adadelta's to {tolerance}")
