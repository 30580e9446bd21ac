# SPDX-License-Identifier: Apache-2.0
"""A rank that is back in time, then one that is not, with torch's own client of the timers."""
import datetime
import os
import time

import torch.distributed as dist

import torch.distributed.elastic.timer as timer

timer.configure(timer.FileTimerClient(os.environ["TORCHELASTIC_TIMER_FILE"]))
with timer.expires(after=30, scope="in time"):
    print("back in time", flush=True)
# The rank that is late is killed with its round. The other one has to be back before that.
store = dist.TCPStore(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), timeout=datetime.timedelta(seconds=40))
store.set("back" + os.environ["RANK"] + os.environ["TORCHELASTIC_RESTART_COUNT"], "")
store.wait([f"back{rank}" + os.environ["TORCHELASTIC_RESTART_COUNT"] for rank in (0, 1)])
if os.environ["RANK"] == "1" and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
    with timer.expires(after=0.5, scope="too late"):
        time.sleep(600)
print("done in attempt", os.environ["TORCHELASTIC_RESTART_COUNT"], flush=True)
if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
    time.sleep(600)
