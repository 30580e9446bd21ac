# SPDX-License-Identifier: Apache-2.0
"""A rank of a job that trains with a framework. Writes into a folder when its first step has ended. With `crash` rank 1
then ends the first round.

    warm_frameworks.py accelerate|lightning|trainer FOLDER [crash]
"""
import sys
import tempfile

import torch
import torch.distributed as dist
from warm_worker import first_step_done


def accelerate():
    from accelerate import Accelerator
    accelerator = Accelerator(cpu=True)
    model = torch.nn.Linear(16, 16)
    model, optimizer = accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
    accelerator.backward(model(torch.randn(4, 16)).sum())
    optimizer.step()
    first_step_done(*sys.argv[2:])
    accelerator.end_training()


def lightning():
    import lightning.pytorch as pl

    class Model(pl.LightningModule):
        def __init__(self):
            super().__init__()
            self.layer = torch.nn.Linear(16, 16)

        def training_step(self, batch, _):
            return self.layer(batch).sum()

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=0.1)

        def on_train_batch_end(self, *_):
            first_step_done(*sys.argv[2:])

    trainer = pl.Trainer(accelerator="cpu", devices=2, strategy="ddp", max_steps=1, logger=False, enable_checkpointing=False,
                         enable_progress_bar=False, enable_model_summary=False)
    trainer.fit(Model(), torch.utils.data.DataLoader(torch.randn(16, 16), batch_size=4))


def trainer():
    import transformers

    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = torch.nn.Linear(16, 16)

        def forward(self, x):
            return {"loss": self.layer(x).sum()}

    class Told(transformers.TrainerCallback):
        def on_step_end(self, *_, **__):
            first_step_done(*sys.argv[2:])

    with tempfile.TemporaryDirectory() as folder:
        arguments = transformers.TrainingArguments(folder, max_steps=1, per_device_train_batch_size=4, use_cpu=True,
                                                   ddp_backend="gloo", report_to="none", save_strategy="no", disable_tqdm=True)
        samples = [{"x": torch.randn(16)} for _ in range(16)]
        transformers.Trainer(Model(), arguments, train_dataset=samples, callbacks=[Told()]).train()


if __name__ == "__main__":
    {"accelerate": accelerate, "lightning": lightning, "trainer": trainer}[sys.argv[1]]()
    if dist.is_initialized():
        dist.destroy_process_group()
