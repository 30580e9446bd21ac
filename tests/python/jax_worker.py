# SPDX-License-Identifier: Apache-2.0
"""A worker of jax.distributed. Each process prints the values that it has received from all processes."""
import jax
import psutil
import ddprun.jax  # noqa: F401

jax.distributed.initialize()
from jax.experimental import multihost_utils  # noqa: E402
import jax.numpy as jnp  # noqa: E402

ranks = multihost_utils.process_allgather(jnp.ones(1) * jax.process_index())
if jax.process_index() == 0:
    from jax._src.distributed import global_state
    port = int(global_state.coordinator_address.rsplit(":", 1)[1])
    listeners = [each.laddr.ip.removeprefix("::ffff:") for each in psutil.Process().net_connections("tcp")
                 if each.status == psutil.CONN_LISTEN and each.laddr.port == port]
    print(f"the coordinator listens at {listeners}", flush=True)
print(f"process {jax.process_index()} of {jax.process_count()}: {ranks.ravel().tolist()}", flush=True)
