# SPDX-License-Identifier: Apache-2.0
"""Trains a small network on 6,000 real images of digits, with PyTorch's DDP on the CPU.

    python -m ddprun.examples.digits                                       # two workers here
    ddprun --standalone --nproc_per_node=4 -m ddprun.examples.digits       # four

Needs PyTorch. $DDPRUN_DIGITS: the folder of the images in MNIST's format, if the program doesn't find it.
"""
from __future__ import annotations

import gzip
import os
import sys

NUM_EPOCHS = 8
BATCH = 50
IMAGE_BYTES = 28 * 28


def folder() -> str:
    """Returns the folder of the images. Throws FileNotFoundError."""
    here = os.path.dirname(os.path.abspath(__file__))
    choices = [os.environ.get("DDPRUN_DIGITS", ""), os.path.join(here, "data"),
               os.path.join(here, "../../../digits"),          # share/ddprun/python/ddprun/examples
               os.path.join(here, "../../../data/digits")]     # a clone
    for choice in choices:
        if choice and os.path.exists(os.path.join(choice, "train-images-idx3-ubyte.gz")):
            return choice
    raise FileNotFoundError("the digits' images are not installed: set DDPRUN_DIGITS to their folder")


def content_of(name: str, head: int) -> bytes:
    with gzip.open(os.path.join(folder(), name), "rb") as file:
        return file.read()[head:]


def main() -> None:
    import torch
    import torch.distributed as dist
    from torch import nn

    import ddprun

    def images_and_labels(kind: str) -> tuple[torch.Tensor, torch.Tensor]:
        images = bytearray(content_of(kind + "-images-idx3-ubyte.gz", 16))
        labels = bytearray(content_of(kind + "-labels-idx1-ubyte.gz", 8))
        pixels = torch.frombuffer(images, dtype=torch.uint8).view(-1, 1, 28, 28).float() / 255
        return pixels, torch.frombuffer(labels, dtype=torch.uint8).long()

    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(1)
    network = nn.Sequential(nn.Conv2d(1, 16, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(16, 32, 5, padding=2),
                            nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(32 * 49, 10))
    model = nn.parallel.DistributedDataParallel(network)
    optimizer = torch.optim.Adam(model.parameters(), lr=4e-3)
    images, labels = images_and_labels("train")
    step = 0
    for epoch in range(NUM_EPOCHS):
        order = torch.randperm(len(images), generator=torch.Generator().manual_seed(epoch))
        for batch in order[: len(order) // world * world][rank::world].split(BATCH):
            step += 1
            ddprun.step(step)
            loss = nn.functional.cross_entropy(model(images[batch]), labels[batch])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            ddprun.report(loss.item(), len(batch))
        if rank == 0:
            print("epoch %d of %d: loss %.3f" % (epoch + 1, NUM_EPOCHS, loss.item()), flush=True)
    ddprun.step_done()
    images, labels = images_and_labels("t10k")
    with torch.no_grad():
        right = (network(images).argmax(1) == labels).float().mean().item()
    if rank == 0:
        print("%d workers, accuracy on images it has never seen: %.4f" % (world, right), flush=True)
    dist.barrier()  # PyTorch 2.15: the process aborts if a gloo thread still frees a tensor while Python ends
    dist.destroy_process_group()


if __name__ == "__main__":
    if "RANK" in os.environ:
        main()
    else:
        try:
            import torch  # noqa: F401
            folder()
        except (ImportError, FileNotFoundError) as problem:
            sys.exit("ddprun.examples.digits: %s" % (problem if isinstance(problem, OSError) else
                                                     "needs PyTorch: pip install torch"))
        from ddprun import launching
        sys.exit(launching.run(["--standalone", "--nproc-per-node=2", "-m", "ddprun.examples.digits"]))
