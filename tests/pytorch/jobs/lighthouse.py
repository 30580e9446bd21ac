# SPDX-License-Identifier: Apache-2.0
"""Runs torchft's lighthouse, through which replicas find each other, until the end of stdin. Prints its address."""
import os
import sys

from torchft._torchft import LighthouseServer

server = LighthouseServer(bind="127.0.0.1:0", min_replicas=1, join_timeout_ms=500)
print(server.address(), flush=True)
sys.stdin.read()
os._exit(0)
