#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A node of one job has the token, and sends messages about another job's round, store and session. It has no rights
there, and the other job goes on undisturbed."""
import os
import struct
import sys

import harness
import raw_agent
from raw_agent import JOIN
from store_client import CLIENT, check_counts

FAILURE = {"global_rank": 0, "local_rank": 0, "node_rank": 0, "host": "forger", "pid": 1, "exit_code": 9, "signal": 0,
           "note": "", "last_lines": ["forged"], "hung": False, "lasting": False, "died_at_us": 0, "clock_error_us": 0,
           "ended_at": 0, "traceback": [], "error_file": "", "error_fields": "", "out_of_memory": "", "log_files": []}


class Member(raw_agent.RawAgent):
    def store(self, round_number, request):
        """Sends a frame of a store's proxy, with one request of one worker."""
        item = struct.pack("<IBQ", 1, 0, len(request)) + request
        self.say(raw_agent.BINARY, b"dps\1" + struct.pack("<QQQ", round_number, 0, 0) + item)


def string(text):
    return struct.pack("<Q", len(text)) + text


# Requests that add to the other job's sum and append to its text, if its store takes them.
HARM = b"\4" + string(b"/sum") + struct.pack("<q", 10**6) + b"\x09" + string(b"/text") + string(b"forged")


class OtherJob(harness.Case):
    def member(self, endpoint, token):
        member = Member(endpoint, token)
        self.addCleanup(member.socket.close)
        return member

    def test_a_node_of_one_job_is_nobody_in_another(self):
        path, meet = self.token(), self.scratch()
        with open(path, "rb") as file:
            token = file.read().strip()
        daemon, endpoint = self.ddprund(f"--token-file={path}")
        code = ('import os, sys\nif os.environ["DDPRUN_ROUND"] == "1": sys.exit(3)\n'
                'open(os.environ["MEET"] + "/begun" + os.environ["RANK"], "w").close()\n' + CLIENT)
        other = self.start(f"--rdzv-endpoint={endpoint}", f"--token-file={path}", "--rdzv-id=theirs",
                           "--max-restarts=1", "--nproc_per_node=2", "--nnodes=1:2", "--rdzv-conf=last_call_timeout=0.05", sys.executable, "-c", code,
                           f"until={meet}/go", "all", MEET=meet)
        harness.wait_until(lambda: len(os.listdir(meet)) == 2, "the other job's workers run in round 2")

        # This member is a node of round 1 of its own job.
        member = self.member(endpoint, token)
        member.tell({**JOIN, "run_id": "mine"})
        session = member.message("welcome")["session"]
        self.assertEqual(member.message("start_round")["round"], 1)
        for number in (1, 2, 3, 1 << 40):  # round 1 is its own job's, which it may change
            member.store(number, HARM)
        member.tell({"type": "workers_running", "seq": 1, "ack": 1, "round": 2})
        member.tell({"type": "worker_failed", "seq": 2, "ack": 1, "round": 2, "failure": FAILURE})
        member.tell({"type": "worker_request", "seq": 3, "ack": 1, "round": 2, "request": "stop_job", "global_rank": 0,
                     "reason": "forged", "exit_code": 9})
        self.assertIs(member.lives(), True)

        # The other job refuses its session, and a second join doesn't make it one of that job's nodes.
        thief = self.member(endpoint, token)
        thief.tell({**JOIN, "run_id": "theirs", "session": session})
        self.assertIn("does not know this agent", str(thief.message("refused")))
        member.tell({**JOIN, "run_id": "theirs"})
        self.assertIsNot(member.lives(), True)

        # A node that waits there for a place can't speak for a node that has one either.
        guest = self.member(endpoint, token)
        guest.tell({**JOIN, "run_id": "theirs", "instance": "1" * 32, "settings": {**JOIN["settings"], "max_nodes": 2}})
        guest.message("waiting")
        guest.store(2, HARM)
        self.assertIs(guest.lives(), True)

        self.write(meet, "go", "")
        done = self.finish(other, code=0)
        check_counts(self, done.stdout, 2)
        daemon.terminate()
        said = self.finish(daemon).stderr
        self.assertIn("job theirs: ended with exit code 0", said)
        self.assertNotIn("job theirs: round 3", said)


if __name__ == "__main__":
    harness.main()
