# SPDX-License-Identifier: Apache-2.0
"""One replica of torchft's managed training, which is a job of its own. Replica 1 is killed once, at its first step
with the other one. Both end after four more steps together and print their parameters."""
import hashlib
import os
import signal
from datetime import timedelta

import torch
import torchft
from ddprun.torch.torchft import ProcessGroupDdprun

replica = int(os.environ["REPLICA"])
torch.manual_seed(replica)
model = torch.nn.Sequential(torch.nn.Linear(32, 64), torch.nn.ReLU(), torch.nn.Linear(64, 4))
adam = torch.optim.AdamW(model.parameters())


def state():
    return {"model": model.state_dict(), "adam": adam.state_dict()}


def load(kept):
    model.load_state_dict(kept["model"])
    adam.load_state_dict(kept["adam"])


manager = torchft.Manager(pg=ProcessGroupDdprun(timedelta(seconds=20)), min_replica_size=1, load_state_dict=load,
                          state_dict=state, timeout=timedelta(seconds=20), replica_id="replica%d" % replica,
                          hostname="127.0.0.1")
parallel = torchft.DistributedDataParallel(manager, model)
optimizer = torchft.Optimizer(manager, adam)
together = alone = 0
while together < 4:
    optimizer.zero_grad()
    torch.nn.functional.cross_entropy(parallel(torch.randn(8, 32)), torch.randint(0, 4, (8,))).backward()
    optimizer.step()
    is_together = manager.num_participants() == 2
    together, alone = (together + 1, alone) if is_together else (0, alone + 1)
    if is_together and replica == 1 and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
        os.kill(os.getpid(), signal.SIGKILL)
digest = hashlib.sha256(b"".join(each.detach().numpy().tobytes() for each in model.parameters())).hexdigest()
print("replica %d: %d steps alone, parameters %s" % (replica, alone, digest), flush=True)
os._exit(0)  # because torchft's threads go on
