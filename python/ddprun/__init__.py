# SPDX-License-Identifier: Apache-2.0
"""ddprun from Python: workers report their progress (ddprun.progress), and notebooks and scripts start jobs.

    import ddprun
    losses = ddprun.launch(train, 1e-3, nproc_per_node=2)  # train(1e-3) in two workers; its results by rank

Standard library only. Import ddprun.jax before jax.distributed.initialize(). For launchers that call
torch.distributed.run themselves: python -m ddprun.compat accelerate launch ….
"""
from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .progress import (connected, exclude_node, log, phase, report, should_stop, step, step_done, step_parts, stop_job,
                       stop_requested, wait_for_place)

if TYPE_CHECKING:
    from .launching import LaunchError, WorkerError, launch

__all__ = ["LaunchError", "WorkerError", "connected", "exclude_node", "launch", "log", "phase", "report", "should_stop",
           "step", "step_done", "step_parts", "stop_job", "stop_requested", "wait_for_place"]


def __getattr__(name: str) -> Any:
    # Imported on first use, because workers start faster without it.
    if name in ("LaunchError", "WorkerError", "launch"):
        from . import launching
        return getattr(launching, name)
    raise AttributeError("module 'ddprun' has no attribute %r" % name)
