# SPDX-License-Identifier: Apache-2.0
"""Calls a function on the next rank by PyTorch's RPC, whose backend is TensorPipe."""
import os

from torch.distributed import rpc


def main():
    rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    options = rpc.TensorPipeRpcBackendOptions(rpc_timeout=30)
    rpc.init_rpc(f"rank{rank}", rank=rank, world_size=world_size, rpc_backend_options=options)
    other = (rank + 1) % world_size
    print(f"rank {rank} hears", rpc.rpc_sync(f"rank{other}", os.getenv, ("RANK",)), flush=True)
    rpc.shutdown()


if __name__ == "__main__":
    main()
