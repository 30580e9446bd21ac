# SPDX-License-Identifier: Apache-2.0
"""A worker of jax.distributed. Each process prints the values that it has received from all processes."""
import jax
import ddprun.jax  # noqa: F401

jax.distributed.initialize()
from jax.experimental import multihost_utils  # noqa: E402
import jax.numpy as jnp  # noqa: E402

ranks = multihost_utils.process_allgather(jnp.ones(1) * jax.process_index())
print(f"process {jax.process_index()} of {jax.process_count()}: {ranks.ravel().tolist()}", flush=True)
