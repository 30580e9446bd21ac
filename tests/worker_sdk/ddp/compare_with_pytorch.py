# SPDX-License-Identifier: Apache-2.0
"""Compares the sampler indices and bucket plans of ddp_probe and PyTorch for the same random inputs.

Usage: compare_with_pytorch.py PATH_TO_ddp_probe
"""
import os
import random
import subprocess
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../support"))
import skips  # noqa: E402

try:
    import torch
    import torch.distributed as dist
    from torch.utils.data import DistributedSampler
except ImportError as error:
    skips.skip_all(f"PyTorch for Python is not importable: {error}")

DTYPES = {"f32": torch.float32, "f64": torch.float64, "f16": torch.float16}


def sampler_questions(rng):
    sizes = [0, 1, 2, 3, 7, 8, 100, 1500, 60000]
    for case in range(300):
        n = rng.choice(sizes) if case % 2 else rng.randrange(0, 3000)
        world = rng.choice([1, 2, 3, 4, 8, 13])
        rank = rng.randrange(world)
        shuffle, drop_last = rng.random() < 0.7, rng.random() < 0.5
        seed, epoch = rng.choice([0, 1, 42, 2**31, 2**32 - 1, 2**40 + 3]), rng.randrange(0, 50)
        if n == 0 and not drop_last:
            drop_last = True  # otherwise PyTorch would divide by zero to pad nothing
        sampler = DistributedSampler(range(n), world, rank, shuffle, seed, drop_last)
        sampler.set_epoch(epoch)
        line = f"sampler {n} {world} {rank} {int(shuffle)} {seed} {int(drop_last)} {epoch}"
        yield line, [list(sampler)]


def random_tensors(rng, dtypes):
    kinds = [rng.choice(dtypes) for _ in range(rng.randrange(1, 30))]
    counts = [rng.choice([1, 3, 64, 1000, 5000, 40000]) for _ in kinds]
    return kinds, counts, [torch.empty(c, dtype=DTYPES[k]) for c, k in zip(counts, kinds)]


def bucket_questions(rng):
    for case in range(300):
        # With several dtypes PyTorch returns the buckets that are still open in hash order. So the last bucket of each
        # dtype is compared after a sort.
        dtypes = ["f32"] if case % 2 else ["f32", "f64", "f16"]
        kinds, counts, tensors = random_tensors(rng, dtypes)
        plan, _ = dist._compute_bucket_assignment_by_size(tensors, [sys.maxsize])
        items = " ".join(f"{c}:{k}" for c, k in zip(counts, kinds))
        yield f"first {items}", list(reversed(plan))

        order = list(range(len(tensors)))
        rng.shuffle(order)
        first, cap = rng.choice([1, 1000, 4096, 100000]), rng.choice([1, 4096, 20000, 200000])
        arrived = [tensors[i] for i in order]
        plan, _ = dist._compute_bucket_assignment_by_size(
            arrived, [first, cap], [False] * len(order), order
        )
        items = " ".join(f"{counts[i]}:{kinds[i]}:{i}" for i in order)
        yield f"rebuild {first} {cap} {items}", (plan, kinds, order, len(dtypes))


def same_plan(ours, expected):
    if isinstance(expected, list):
        return ours == expected
    plan, kinds, order, num_dtypes = expected
    if num_dtypes == 1:
        return ours == plan
    # Compares all buckets exactly, except the unordered ones at the end, which are compared as a set.
    differing = next((i for i, (a, b) in enumerate(zip(ours, plan)) if a != b), len(plan))
    tail_ours, tail_plan = ours[differing:], plan[differing:]
    one_per_dtype = len({kinds[bucket[0]] for bucket in tail_plan}) == len(tail_plan)
    by_first = sorted(tail_plan, key=lambda bucket: order.index(bucket[0]))
    return one_per_dtype and tail_ours == by_first


def main():
    rng = random.Random(20)
    probe = subprocess.Popen([sys.argv[1]], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    failures = total = 0
    for line, expected in [*sampler_questions(rng), *bucket_questions(rng)]:
        probe.stdin.write(line + "\n")
        probe.stdin.flush()
        answer = probe.stdout.readline()
        ours = [[int(i) for i in part.split()] for part in answer.split("|")]
        total += 1
        if not same_plan(ours, expected):
            failures += 1
            print(f"differs: {line}\n  ours    {ours}\n  PyTorch {expected}"[:2000])
    probe.stdin.close()
    probe.wait(timeout=10)
    print(f"{total} questions, {failures} answers differ from PyTorch's")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
