# SPDX-License-Identifier: Apache-2.0
"""Uses torch's own client of the timers: a rank releases a timer in time, then one does not."""
import datetime
import os
import time

import torch.distributed as dist

import torch.distributed.elastic.timer as timer

timer.configure(timer.FileTimerClient(os.environ["TORCHELASTIC_TIMER_FILE"]))
with timer.expires(after=30, scope="in time"):
    print("back in time", flush=True)
# The late rank is killed with its round. The other one must release its timer before that.
store = dist.TCPStore(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), timeout=datetime.timedelta(seconds=40))
store.set("back" + os.environ["RANK"] + os.environ["TORCHELASTIC_RESTART_COUNT"], "")
store.wait([f"back{rank}" + os.environ["TORCHELASTIC_RESTART_COUNT"] for rank in (0, 1)])
if os.environ["RANK"] == "1" and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
    with timer.expires(after=0.5, scope="too late"):
        time.sleep(600)
print("done in attempt", os.environ["TORCHELASTIC_RESTART_COUNT"], flush=True)
if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
    time.sleep(600)
