# SPDX-License-Identifier: Apache-2.0
"""torchft's managed training over ddprun's host communicator, in place of its ProcessGroupGloo.

    from ddprun.torch.torchft import ProcessGroupDdprun
    manager = torchft.Manager(pg=ProcessGroupDdprun(), ...)
"""
from __future__ import annotations

from typing import Any

import torch
from torch.distributed import ProcessGroup, Store
from torchft.process_group import ProcessGroupWrapper

from .backend import Backend


class ProcessGroupDdprun(ProcessGroupWrapper):  # type: ignore[misc]
    """The process group of one quorum of replicas. torchft makes a new one for each quorum."""

    def _create_pg(self, store: Store, rank: int, world_size: int) -> ProcessGroup:
        group = ProcessGroup(store, rank, world_size)
        group._set_default_backend(ProcessGroup.BackendType.CUSTOM)
        group._register_backend(torch.device("cpu"), ProcessGroup.BackendType.CUSTOM,
                                Backend(store, rank, world_size, self._timeout))
        return group

    def getBackendName(self) -> str:
        return "torchft-ddprun"
