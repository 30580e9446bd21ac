# SPDX-License-Identifier: Apache-2.0
"""Compares learning rates of ddp_probe and of torch.optim.lr_scheduler. They are equal to the last bit if PyTorch has a
closed form, and to 1e-12 if it multiplies from step to step.

Usage: compare_schedules.py PATH_TO_ddp_probe
"""
import os
import random
import subprocess
import sys
import warnings

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../support"))
import skips  # noqa: E402

try:
    import torch
    from torch.optim import lr_scheduler as peers
except ImportError as error:
    skips.skip_all(f"PyTorch for Python is not importable: {error}")

warnings.simplefilter("ignore")  # hides the warning "step() before optimizer.step()"


def by_steps(make, base, num_steps):
    """Returns the rates of steps 0, 1, … as a training loop sees them, and the closed form's (None: it has none)."""
    optimizer = torch.optim.SGD([torch.zeros(1)], lr=base)
    scheduler = make(optimizer)
    seen, closed = [], []
    for _ in range(num_steps):
        seen.append(optimizer.param_groups[0]["lr"])
        form = getattr(scheduler, "_get_closed_form_lr", None)
        closed.append(form()[0] if form else None)
        scheduler.step()
    return seen, closed


def questions(rng):
    for _ in range(20):
        base, total = rng.choice([1.0, 0.1, 3e-4]), rng.randrange(2, 200)
        low = rng.choice([0.0, base / 100])
        yield f"cosine {base!r} {low!r} {total}", total, by_steps(
            lambda o: peers.CosineAnnealingLR(o, total, low), base, total)
        start, end = rng.choice([1 / 3, 0.01, 1.0]), rng.choice([1.0, 0.5])
        yield f"linear {base!r} {start!r} {end!r} {total}", total + 20, by_steps(
            lambda o: peers.LinearLR(o, start, end, total), base, total + 20)
        gamma, size = rng.choice([0.7, 0.99]), rng.randrange(1, 30)
        yield f"step {base!r} {gamma!r} {size}", 100, by_steps(
            lambda o: peers.StepLR(o, size, gamma), base, 100)
        yield f"step {base!r} {gamma!r} 1", 50, by_steps(lambda o: peers.ExponentialLR(o, gamma), base, 50)
        warmup = rng.randrange(1, total)
        yield f"warmup {base!r} {low!r} {start!r} {warmup} {total}", total, by_steps(
            lambda o: peers.SequentialLR(o, [peers.LinearLR(o, start, 1.0, warmup),
                                             peers.CosineAnnealingLR(o, total - warmup, low)], [warmup]),
            base, total)


def main():
    total = failures = exact = 0
    with subprocess.Popen([sys.argv[1]], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as probe:
        for line, num_steps, (seen, closed) in questions(random.Random(4)):
            probe.stdin.write(f"schedule {num_steps} {line}\n")
            probe.stdin.flush()
            ours = [float(value) for value in probe.stdout.readline().split()]
            total += 1
            close = len(ours) == len(seen) and all(
                abs(a - b) <= 1e-12 * max(abs(b), 1e-6) for a, b in zip(ours, seen))
            has_form = None not in closed
            exact += has_form
            if not close or has_form and ours != closed:
                failures += 1
                print(f"differs: {line}\n  ours    {ours}\n  PyTorch {seen}\n  closed  {closed}"[:3000])
        probe.stdin.close()
    print(f"{total} schedules, {exact} compared to the last bit; {failures} differ from PyTorch's")
    return 1 if failures or exact < total / 2 else 0


if __name__ == "__main__":
    sys.exit(main())
