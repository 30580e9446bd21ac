# SPDX-License-Identifier: Apache-2.0
"""Lets programs that call torch.distributed.run start their workers by ddprun.

    python -m ddprun.compat accelerate launch train.py
    python -m ddprun.compat fabric run --devices=2 train.py
    DDPRUN_COMPAT=1 python train_with_notebook_launcher.py   # where ddprun was installed by pip

In a notebook: ddprun.compat.install(), before accelerate.notebook_launcher().
"""
from __future__ import annotations

import importlib.abc
import importlib.machinery
import importlib.util
import os
import runpy
import shutil
import sys
from collections.abc import Sequence
from types import CodeType, ModuleType
from typing import Any, Callable

from . import launching


def install() -> None:
    """Makes torch.distributed.run.run() and elastic_launch() start ddprun from now on. Imports nothing of PyTorch."""
    if any(isinstance(finder, _Finder) for finder in sys.meta_path):
        return
    sys.meta_path.insert(0, _Finder())
    for name, replace in _REPLACED.items():
        if name in sys.modules:
            replace(sys.modules[name])


# These flags are passed on even with torchrun's defaults, so that no variable or file of ddprun's overrides them.
_ALWAYS = ("nnodes", "nproc_per_node", "max_restarts")
_OF_STATIC_NODES = ("node_rank", "master_addr", "master_port")


def flags_of(arguments: Any, defaults: Any, names: Sequence[str]) -> list[str]:
    """Returns the arguments that torchrun's parser has read as flags again."""
    def is_given(name: str) -> bool:
        return getattr(arguments, name, None) not in (None, getattr(defaults, name, None))

    always = list(_ALWAYS)
    if any(is_given(name) for name in _OF_STATIC_NODES):
        always += _OF_STATIC_NODES
    flags = []
    for name in names:
        value = getattr(arguments, name, None)
        if value is None or not (is_given(name) or name in always):
            continue
        if isinstance(value, (list, tuple)):
            value = ",".join(map(str, value))
        flags.append("--" + name.replace("_", "-") + ("" if value is True else "=%s" % value))
    return flags


def _replace_run(module: ModuleType) -> None:
    def run(arguments: Any) -> None:
        parser = module.get_args_parser()
        names = [action.dest for action in parser._actions if action.option_strings and action.dest != "help"]
        defaults = parser.parse_args(["program"])
        flags = flags_of(arguments, defaults, names)
        status = launching.run([*flags, arguments.training_script, *arguments.training_script_args])
        if status != 0:
            sys.exit(status if status > 0 else 128 - status)

    module.run = run  # type: ignore[attr-defined]


class _ElasticLaunch:
    """Replaces torch.distributed.launcher.api.elastic_launch."""

    def __init__(self, config: Any, entrypoint: Callable[..., Any] | str | None, *_: Any, **__: Any) -> None:
        self.config, self.entrypoint = config, entrypoint

    def __call__(self, *args: Any) -> dict[int, Any]:
        flags = _flags_of_config(self.config)
        if callable(self.entrypoint):
            return launching.call(self.entrypoint, args, {}, flags)
        status = launching.run([*flags, "--no-python", str(self.entrypoint), *map(str, args)])
        if status != 0:
            raise launching.LaunchError("ddprun ended with exit code %d" % status, status)
        return {}


def _replace_elastic_launch(module: ModuleType) -> None:
    module.elastic_launch = _ElasticLaunch  # type: ignore[attr-defined]


def _flags_of_config(config: Any) -> list[str]:
    flags = ["--nnodes=%d:%d" % (config.min_nodes, config.max_nodes), "--nproc-per-node=%d" % config.nproc_per_node,
             "--max-restarts=%d" % config.max_restarts]
    for name in ("role", "local_addr", "monitor_interval", "shutdown_timeout", "log_line_prefix_template"):
        value = getattr(config, name, None)
        if value is not None:
            flags.append("--%s=%s" % (name.replace("_", "-"), value))
    if config.max_nodes == 1:
        return [*flags, "--standalone"]
    settings = dict(config.rdzv_configs)
    if config.rdzv_backend == "static":
        host, _, port = config.rdzv_endpoint.rpartition(":")
        return [*flags, "--node-rank=%d" % settings.get("rank", 0), "--master-addr=" + host, "--master-port=" + port]
    flags += ["--rdzv-backend=" + config.rdzv_backend, "--rdzv-endpoint=" + config.rdzv_endpoint]
    if config.run_id:
        flags.append("--rdzv-id=" + config.run_id)
    if settings:
        flags.append("--rdzv-conf=" + ",".join("%s=%s" % item for item in settings.items()))
    return flags


_REPLACED = {"torch.distributed.run": _replace_run, "torch.distributed.launcher.api": _replace_elastic_launch,
             # This module has imported the name from the one above.
             "torch.distributed.launcher": _replace_elastic_launch}


class _Finder(importlib.abc.MetaPathFinder):
    """Finds the modules of _REPLACED as usual, and replaces their functions once they are loaded."""

    def find_spec(self, name: str, path: Sequence[str] | None,
                  target: ModuleType | None = None) -> importlib.machinery.ModuleSpec | None:
        replace = _REPLACED.get(name)
        if replace is None:
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path, target)
        if spec is not None and spec.loader is not None:
            spec.loader = _Loader(spec.loader, replace)
        return spec


class _Loader(importlib.abc.Loader):
    def __init__(self, loader: Any, replace: Callable[[ModuleType], None]) -> None:
        self.loader, self.replace = loader, replace

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType | None:
        made: ModuleType | None = self.loader.create_module(spec)
        return made

    def exec_module(self, module: ModuleType) -> None:
        self.loader.exec_module(module)
        self.replace(module)

    def get_code(self, name: str) -> CodeType:
        """Returns code for `python -m torch.distributed.run`, which would otherwise run the unchanged file."""
        return compile("from torch.distributed.run import main; main()", name, "exec")

    def __getattr__(self, name: str) -> Any:
        return getattr(self.loader, name)  # for get_source() and the like, which tracebacks use


def main(words: Sequence[str]) -> None:
    if not words or words[0] in ("-h", "--help"):
        sys.exit("usage: python -m ddprun.compat COMMAND ARGUMENTS…, as in accelerate launch train.py")
    script = shutil.which(words[0])
    if script is None:
        sys.exit("ddprun.compat: there is no command %s in PATH" % words[0])
    with open(script, "rb") as file:
        head = file.read(1024)
    if not head.startswith(b"#!") or b"python" not in head:  # with a long path pip's script begins with #!/bin/sh
        sys.exit("ddprun.compat: %s is no Python script" % script)
    install()
    sys.argv = [script, *words[1:]]
    sys.path[0] = os.path.dirname(script)  # as if the script were run directly
    runpy.run_path(script, run_name="__main__")


if __name__ == "__main__":
    # Imports this file again as ddprun.compat, because install() elsewhere looks for that module's hook.
    from ddprun import compat

    compat.main(sys.argv[1:])
