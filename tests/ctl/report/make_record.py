#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes files like those of ddprun --events and --report and train --json, for jobs that never ran. Tests of
`ddprunctl report` use them, and people who look at its pages.

    make_record.py DIR [--nodes N] [--ranks-per-node N] [--seconds S] [--gpus N] [--seed N]
"""
import argparse
import datetime
import json
import math
import os
import random

BEGAN = datetime.datetime(2026, 11, 26, 3, 15, 7, tzinfo=datetime.timezone.utc)
CAUSE = "rank 1 (node 0, node0, pid 5001) was killed by SIGKILL; restart 1 of 3"


class Job:
    """A job of two rounds. The first one ends after a third of the time, when rank 1 is killed."""

    def __init__(self, name="nightly", nodes=2, ranks_per_node=1, seconds=120, gpus=0, seed=7, has_parts=True):
        self.name, self.nodes, self.ranks_per_node, self.seconds, self.gpus = name, nodes, ranks_per_node, seconds, gpus
        self.random = random.Random(seed)
        self.has_parts = has_parts
        self.world_size = nodes * ranks_per_node
        self.slow = self.world_size * 2 // 3 if self.world_size > 1 else -1
        self.lost_at = seconds / 3

    def line(self, file, node, event, seconds, round_number, **keys):
        time = (BEGAN + datetime.timedelta(seconds=seconds)).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        print(json.dumps({"event": event, "time": time, "seconds": round(seconds, 3), "job": self.name, "host": f"node{node}",
                          "node_rank": node if round_number else None, "round": round_number, **keys},
                         separators=(",", ":")), file=file)

    def ledger(self):
        first = {"rendezvous": 1.2, "warming": 0.5, "spawn": 0.3, "communicators": 1.5, "first_step": 1.0, "running": self.lost_at - 9, "redone": 2.5, "detect": 1.0, "stop": 1.0, "delay": 0.6}
        second = {"rendezvous": 0.4, "warming": 0, "spawn": 0.7, "communicators": 1.1, "first_step": 1.2, "running": self.seconds * 2 / 3 - 5, "redone": 0, "detect": 0, "stop": 1.0, "delay": 0}
        rounds = []
        for number, seconds in enumerate((first, second), 1):
            rounds.append({"round": number, "nodes": self.nodes, "spares": 0, "world_size": self.world_size, "in_place": False,
                           "came": [], "went": [], "stragglers": [f"rank {self.slow} (node0): 1.6 times the middle"] if number == 2 else [],
                           "cause": CAUSE if number == 1 else "", "first_failure": CAUSE if number == 1 else "", "victims": [],
                           "first_step": 1 if number == 1 else 901, "last_step": 1000 if number == 1 else 3200,
                           "steps_redone": 100 if number == 1 else 0, "seconds": seconds})
        total = {key: first[key] + second[key] for key in first}
        return {"ettr": total["running"] / sum(total.values()), "seconds": total, "rounds": rounds}

    def progress(self, rank, seconds, round_number, begun):
        gone = seconds - begun
        slow = 1.6 if rank == self.slow and seconds > self.seconds / 2 else 1 + 0.05 * math.sin(rank)
        own = 0.16 * slow * (1 + 0.02 * self.random.random())
        step = max(own, 0.16 * (1.6 if seconds > self.seconds / 2 else 1.06)) + 0.02
        if gone < 6:
            step, own = step * 8, own * 6
        entry = {"rank": rank, "step": 1 + int(gone / 0.2), "loss": 2.3 / (1 + 3 * seconds / self.seconds) + 0.03 * self.random.random(),
                 "samples": int(gone * 160), "step_seconds": round(step, 4), "communication_seconds": None,
                 "exposed_seconds": None, "loader_seconds": None}
        if self.has_parts:
            entry.update(communication_seconds=0.04, exposed_seconds=round(step - own, 4), loader_seconds=0.002)
        return entry

    def reading(self, node, seconds):
        wave = 1 + 0.1 * math.sin(seconds / 40 + node) + 0.05 * self.random.random()
        gpus = [{"gpu": gpu, "use": min(0.93 * wave, 1), "memory_bytes": 85e9, "memory_used_bytes": 61e9 + 1e9 * gpu,
                 "watts": 520 * wave, "celsius": 60 + 2 * gpu + wave} for gpu in range(self.gpus)]
        return {"cpus": 64, "cpu": 0.42 * wave, "memory_bytes": 540_000_000_000, "memory_used_bytes": int(81e9 + 2e7 * seconds),
                "received_bytes_per_second": 1.2e9 * wave, "sent_bytes_per_second": 1.1e9 * wave,
                "tcp_retransmits_per_second": 3.0 * self.random.random(), "interfaces": [], "gpus": gpus}

    def events(self, node, file):
        first = node * self.ranks_per_node
        ranks = range(first, first + self.ranks_per_node)
        self.line(file, node, "begin", 0, 0, version="0.1.0", pid=4000 + node, program="train.py", num_workers=self.ranks_per_node,
                  min_nodes=self.nodes, max_nodes=self.nodes, max_restarts=3)
        spans = [(1, 1.2, self.lost_at), (2, self.lost_at + 3, self.seconds - 1)]
        for number, begun, ended in spans:
            self.line(file, node, "round", begun, number, restart_count=number - 1, num_nodes=self.nodes, world_size=self.world_size,
                      first_global_rank=first, in_place=False, waited_seconds=1.1)
            for local, rank in enumerate(ranks):
                self.line(file, node, "spawn", begun + 0.8, number, global_rank=rank, local_rank=local, pid=5000 + rank)
            seconds = begun + 5
            while seconds < ended:
                self.line(file, node, "progress", seconds, number, ranks=[self.progress(rank, seconds, number, begun) for rank in ranks])
                self.line(file, node, "node", seconds + 0.1, number, **self.reading(node, seconds))
                seconds += 5
            for local, rank in enumerate(ranks):
                kind, code, name = ("success", 0, None) if number == 2 else ("stopped", None, "SIGTERM")
                if number == 1 and rank == min(1, self.world_size - 1):
                    kind, code, name = "signal", None, "SIGKILL"
                self.line(file, node, "exit", ended, number, global_rank=rank, local_rank=local, pid=5000 + rank, kind=kind,
                          exit_code=code, signal=name)
            if number == 1:
                self.line(file, node, "restart", ended + 0.5, number, cause=CAUSE, in_place=False)
        self.line(file, node, "verdict", self.seconds, 2, state="succeeded", exit_code=0, reason=None, first_failure=None, rounds=2,
                  ledger=self.ledger() if node == 0 else None)

    def train_summary(self):
        epochs = [{"epoch": epoch, "train_loss": 2.2 / epoch, "test_loss": 2.0 / epoch + 0.1, "test_accuracy": 1 - 0.6 / (epoch + 1),
                   "seconds": 10, "samples_per_second": 160.0 * self.world_size} for epoch in range(1, 11)]
        return {"world_size": self.world_size, "backend": "host", "device": "cpu", "data": "digits", "test_accuracy": epochs[-1]["test_accuracy"],
                "first_step": 1, "last_step": 3200, "compress": "none", "mode": "ddp", "epochs": epochs}

    def write(self, directory, summary=True):
        os.makedirs(directory, exist_ok=True)
        for node in range(self.nodes):
            with open(os.path.join(directory, f"events.node{node}.jsonl"), "w", encoding="utf-8") as file:
                self.events(node, file)
        if summary:
            with open(os.path.join(directory, "train.json"), "w", encoding="utf-8") as file:
                json.dump(self.train_summary(), file)
        return directory


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("directory")
    for name, default in (("nodes", 2), ("ranks-per-node", 1), ("seconds", 120), ("gpus", 0), ("seed", 7)):
        parser.add_argument(f"--{name}", type=int, default=default)
    options = vars(parser.parse_args())
    directory = options.pop("directory")
    Job(**options).write(directory)


if __name__ == "__main__":
    main()
