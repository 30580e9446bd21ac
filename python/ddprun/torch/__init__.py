# SPDX-License-Identifier: Apache-2.0
"""The backend "ddprun" of torch.distributed, for tensors on the CPU.

    import ddprun.torch                          # not needed where ddprun was installed by pip
    dist.init_process_group("ddprun")            # or "cpu:ddprun,cuda:nccl"
"""
from __future__ import annotations

from typing import Any

import torch.distributed as _dist


def _make(store: Any, rank: int, size: int, timeout: Any) -> Any:
    import torch
    if not hasattr(torch._C._distributed_c10d.Backend, "all_gather_single"):
        raise RuntimeError('the backend "ddprun" needs PyTorch 2.14 or newer, and this is %s' % torch.__version__)
    from .backend import Backend
    return Backend(store, rank, size, timeout)


def register() -> None:
    """Registers it. PyTorch calls it if a script asks for "ddprun" (entry point torch.distributed.backends)."""
    if "ddprun" not in _dist.Backend.backend_list:
        _dist.Backend.register_backend("ddprun", _make, devices=["cpu"])


register()
