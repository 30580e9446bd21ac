# SPDX-License-Identifier: Apache-2.0
"""A rank that trains a small network on real images of digits, by a framework. Rank 1 dies in the first round when the first
of two epochs is saved. The next round trains on from there. Rank 0 prints the last step's loss, the sum of all weights and
how many images of the test set are recognized.

    frameworks.py accelerate|lightning|trainer FOLDER
"""
import gzip
import os
import sys

import torch
import torch.distributed as dist
from torch import nn

DIGITS = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../../data/digits")
NUM_EPOCHS, BATCH = 2, 25
folder = sys.argv[2]


def images_and_labels(kind):
    def content(name, head):
        with gzip.open(os.path.join(DIGITS, name)) as file:
            return torch.frombuffer(bytearray(file.read()[head:]), dtype=torch.uint8)
    return (content(kind + "-images-idx3-ubyte.gz", 16).view(-1, 1, 28, 28).float() / 255,
            content(kind + "-labels-idx1-ubyte.gz", 8).long())


class Network(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Conv2d(1, 8, 5, stride=2), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 144, 10))
        self.last_loss = None

    def forward(self, x, labels):
        loss = nn.functional.cross_entropy(self.layers(x), labels)
        self.last_loss = loss.item()
        return {"loss": loss}


def samples():
    return [{"x": x, "labels": y} for x, y in zip(*images_and_labels("train"))]


def die_once():
    """Called when the first epoch is saved."""
    dist.barrier()
    if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
        if dist.get_rank() == 1:
            os._exit(1)
        dist.barrier()  # until this rank is stopped


def by_accelerate(network, saved):
    import accelerate
    accelerate.utils.set_seed(1)
    accelerator = accelerate.Accelerator(cpu=True)
    model, optimizer, loader = accelerator.prepare(network, torch.optim.Adam(network.parameters(), lr=4e-3),
                                                   torch.utils.data.DataLoader(samples(), batch_size=BATCH, shuffle=True))
    first = 0
    if os.path.exists(saved):
        accelerator.load_state(saved)
        first = 1
    for epoch in range(first, NUM_EPOCHS):
        loader.set_epoch(epoch)
        for batch in loader:
            accelerator.backward(model(**batch)["loss"])
            optimizer.step()
            optimizer.zero_grad()
        if epoch == 0:
            accelerator.save_state(saved)
            die_once()


def by_lightning(network, saved):
    import lightning.pytorch as pl
    pl.seed_everything(1)

    class Model(pl.LightningModule):
        def __init__(self):
            super().__init__()
            self.network = network

        def training_step(self, batch, _):
            return self.network(**batch)["loss"]

        def configure_optimizers(self):
            return torch.optim.Adam(self.parameters(), lr=4e-3)

        def on_train_epoch_start(self):
            if self.current_epoch == 1:
                die_once()

    keeper = pl.callbacks.ModelCheckpoint(dirpath=folder, filename="saved", save_on_train_epoch_end=True)
    trainer = pl.Trainer(accelerator="cpu", devices=2, strategy="ddp", max_epochs=NUM_EPOCHS, logger=False, callbacks=[keeper],
                         enable_progress_bar=False, enable_model_summary=False)
    trainer.fit(Model(), torch.utils.data.DataLoader(samples(), batch_size=BATCH, shuffle=True),
                ckpt_path=saved + ".ckpt" if os.path.exists(saved + ".ckpt") else None)


def by_trainer(network, _):
    import transformers
    from transformers.trainer_utils import get_last_checkpoint

    class Dies(transformers.TrainerCallback):
        def on_epoch_begin(self, _, state, *args, **more):
            if state.epoch == 1:
                die_once()

    arguments = transformers.TrainingArguments(
        folder, num_train_epochs=NUM_EPOCHS, per_device_train_batch_size=BATCH, learning_rate=4e-3, use_cpu=True, ddp_backend="gloo",
        report_to="none", save_strategy="epoch", logging_strategy="no", disable_tqdm=True, seed=1)
    transformers.Trainer(network, arguments, train_dataset=samples(), callbacks=[Dies()]).train(
        resume_from_checkpoint=get_last_checkpoint(folder))


def main():
    torch.manual_seed(1)
    network = Network()
    {"accelerate": by_accelerate, "lightning": by_lightning, "trainer": by_trainer}[sys.argv[1]](network, os.path.join(folder, "saved"))
    images, labels = images_and_labels("t10k")
    with torch.no_grad():
        right = (network.layers(images).argmax(1) == labels).sum().item()
    if dist.get_rank() == 0:
        weights = sum(weight.double().sum().item() for weight in network.parameters())
        print("result", os.environ["TORCHELASTIC_RESTART_COUNT"], network.last_loss.hex(), weights.hex(), right, flush=True)
    dist.barrier()
    os._exit(0)  # PyTorch 2.15 aborts an exit in which one of gloo's threads drops a tensor


if __name__ == "__main__":
    main()
