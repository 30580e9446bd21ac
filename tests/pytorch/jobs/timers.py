# SPDX-License-Identifier: Apache-2.0
"""A rank that is back in time, then one that is not, with torch's own client of the timers."""
import os
import time

import torch.distributed.elastic.timer as timer

timer.configure(timer.FileTimerClient(os.environ["TORCHELASTIC_TIMER_FILE"]))
with timer.expires(after=30, scope="in time"):
    print("back in time", flush=True)
if os.environ["RANK"] == "1" and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
    with timer.expires(after=0.5, scope="too late"):
        time.sleep(600)
print("done in attempt", os.environ["TORCHELASTIC_RESTART_COUNT"], flush=True)
if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
    time.sleep(600)
