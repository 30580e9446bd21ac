#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tests ddprun --metrics: a node's page, also before the rendezvous, and the node's entry in /v1/jobs."""
import json
import os
import re
import sys
import urllib.request

import dashboard
import harness
import prometheus
from prometheus import answers, page, samples

AGENT = os.path.join(harness.BIN, "ddprun-agent")

# A worker that fails in the first round, once the test has seen it run, and runs on in later rounds.
WORKER = ('echo $RANK up; [ "$DDPRUN_ROUND" = 2 ] && exec sleep 600; '
          'until [ -e "$MEET/go" ]; do sleep 0.01; done; exit 3')
LOOP = """
import os, sys, time
import ddprun
ddprun.step(41)
ddprun.report(0.5 + int(os.environ["RANK"]), 100)
time.sleep(600)
"""


class NodeMetrics(prometheus.Case):
    def node(self, port, *args, **more):
        return self.start("--nnodes=1", f"--metrics=127.0.0.1:{port}", "--rdzv-id=job", *args, **more)

    def shows(self, port, series, value):
        try:
            return samples(page(port)[2]).get(series) == value
        except OSError:
            return False

    def await_page(self, port, series, value):
        harness.wait_until(lambda: self.shows(port, series, value), f"{series} is {value}")

    def test_it_is_there_before_any_rendezvous_answers(self):
        port = harness.free_port()
        self.start("--nnodes=2", f"--metrics=127.0.0.1:{port}", "--rdzv-id=job", "--rdzv-conf=is_host=0",
                   f"--rdzv-endpoint=127.0.0.1:{harness.free_port()}", "--no-python", "true")
        harness.wait_until(lambda: answers(port), "the node's page is there")
        status, kind, text = page(port)
        self.assertEqual((status, kind), (200, "text/plain; version=0.0.4; charset=utf-8"))
        found = samples(text)
        for series in ("ddprun_rendezvous_connected", "ddprun_rendezvous_rounds_total",
                       'ddprun_workers{state="running"}', 'ddprun_worker_exits_total{kind="signal"}',
                       'ddprun_worker_restarts_total{reason="worker_failed"}',
                       "ddprun_rendezvous_duration_seconds_count"):
            self.assertEqual(found[series], 0, series)
        self.assertEqual(found['ddprun_job_info{job_id="job"}'], 1)
        for series in ("ddprun_node_memory_bytes", 'ddprun_node_cpu_seconds_total{mode="user"}',
                       "process_resident_memory_bytes"):
            self.assertGreater(found[series], 0, series)
        self.assertIn("ddprun_node_tcp_retransmitted_segments_total", found)
        self.assertNotIn("local_rank", text)
        self.assertEqual(page(port, path="/v1/jobs")[0], 404)

    def test_a_real_prometheus_counts_a_worker_that_fails_and_the_restart(self):
        self.need_prometheus()
        port, meet = harness.free_port(), self.scratch()
        process = self.node(port, "--nproc_per_node=2", "--max-restarts=1", "--no-python", "sh", "-c", WORKER, MEET=meet)
        scraper = self.prometheus(port)
        for series, value in (('ddprun_workers{state="running"}', 2), ("ddprun_rendezvous_connected", 1),
                              ("ddprun_rendezvous_rounds_total", 1), ("up", 1),
                              ('ddprun_worker_exits_total{kind="error"}', 0), ("ddprun_node_rank", 0),
                              ("count(ddprun_worker_resident_memory_bytes > 0)", 2),
                              ("count(ddprun_worker_cpu_seconds_total)", 2)):
            self.await_value(scraper, series, value)
        open(os.path.join(meet, "go"), "w").close()
        for series, value in (("ddprun_rendezvous_rounds_total", 2), ("ddprun_round", 2),
                              ('ddprun_worker_restarts_total{reason="worker_failed"}', 1),
                              ("sum(ddprun_worker_exits_total)", 2), ('ddprun_workers{state="running"}', 2),
                              ("ddprun_rendezvous_duration_seconds_count", 2)):
            self.await_value(scraper, series, value)
        failed, = self.asked(scraper, 'ddprun_worker_exits_total{kind="error"}')
        self.assertIn(failed, (1, 2))  # the other worker may have been stopped first
        names = self.label_names(scraper)
        ours = {"__name__", "instance", "job", "job_id", "le"}
        self.assertLessEqual(names, ours | {"program", "version", "state", "kind", "reason", "local_rank", "mode",
                                            "interface", "gpu"})
        self.check(port)
        process.terminate()
        self.finish(process)
        self.assertFalse(answers(port))

    def test_steps_and_gpus_of_its_ranks_here_and_at_the_rendezvous(self):
        port, endpoint, scratch = harness.free_port(), harness.free_port(), self.scratch()
        self.start(f"--listen=127.0.0.1:{endpoint}", f"--state-dir={scratch}/journal", program=harness.DDPRUND)
        harness.wait_until(lambda: answers(endpoint), "ddprund serves")
        for name, text in (("list", ""), ("state", "0 use_percent 97\n0 memory 1000\n0 memory_used 400\n"
                                                   "0 milliwatts 512300\n1 celsius 61\n")):
            with open(os.path.join(scratch, name), "w", encoding="utf-8") as file:
                file.write(text)
        gpus = {"DDPRUN_NVML_LIBRARY": os.path.join(harness.BIN, "libddprun_fake_nvml.so"),
                "FAKE_NVML_LIST": os.path.join(scratch, "list"), "FAKE_NVML_STATE": os.path.join(scratch, "state")}
        process = self.node(port, "--nproc_per_node=2", f"--rdzv-endpoint=127.0.0.1:{endpoint}", sys.executable, "-c",
                            LOOP, PYTHONPATH=os.path.join(harness.SOURCE, "python"), **gpus)
        for series, value in (('ddprun_worker_step{local_rank="0"}', 41), ('ddprun_worker_loss{local_rank="1"}', 1.5),
                              ('ddprun_worker_samples_total{local_rank="1"}', 100),
                              ('ddprun_node_gpu_use_ratio{gpu="0"}', 0.97), ('ddprun_node_gpu_power_watts{gpu="0"}', 512.3),
                              ('ddprun_node_gpu_temperature_celsius{gpu="1"}', 61)):
            self.await_page(port, series, value)

        def monitor():
            with urllib.request.urlopen(f"http://127.0.0.1:{endpoint}/v1/jobs", timeout=harness.TIMEOUT) as answer:
                return json.load(answer)["jobs"][0]["nodes"][0].get("monitor")
        harness.wait_until(lambda: (monitor() or {}).get("gpus"), "the rendezvous shows the node's readings")
        said = monitor()
        self.assertEqual(said["gpus"], [
            {"gpu": 0, "use": 0.97, "memory_bytes": 1000, "memory_used_bytes": 400, "watts": 512.3, "celsius": None},
            {"gpu": 1, "use": None, "memory_bytes": None, "memory_used_bytes": None, "watts": None, "celsius": 61}])
        self.assertEqual(set(said), {"age_seconds", "cpus", "cpu", "memory_bytes", "memory_used_bytes",
                                     "received_bytes_per_second", "sent_bytes_per_second",
                                     "tcp_retransmits_per_second", "interfaces", "gpus"})
        self.assertTrue(0 <= said["cpu"] <= 1, said)
        self.assertTrue(0 <= said["age_seconds"] < 60, said)
        self.assertTrue(0 < said["memory_used_bytes"] < said["memory_bytes"], said)
        standing = harness.free_port()
        self.start(f"--rdzv-endpoint=127.0.0.1:{endpoint}", "--slots=2", f"--log-dir={scratch}", f"--metrics=127.0.0.1:{standing}",
                   program=AGENT, **gpus)
        self.await_page(standing, "ddprun_rendezvous_connected", 1)
        self.await_page(standing, 'ddprun_node_gpu_use_ratio{gpu="0"}', 0.97)
        self.check_dashboard(page(endpoint)[2] + page(port)[2], standing)
        process.terminate()
        self.finish(process)

    def check_dashboard(self, pages, standing):
        """Checks that the queries of Grafana's panels find the pages' metrics. A real Prometheus takes them."""
        grafana = dashboard.Dashboard()
        self.assertEqual(grafana.problems(), [])
        asked, of_agents = grafana.expressions(), grafana.expressions("$agent")
        self.assertGreater(len(asked), 40)
        self.assertGreater(len(of_agents), 5)
        for all_asked, served in (([each for each in asked if each not in of_agents], pages), (of_agents, page(standing)[2])):
            for title, expression in all_asked:
                names = dashboard.names_in(expression)
                self.assertTrue(names, (title, expression))
                self.assertEqual(names - dashboard.names_on(served), set(), title)
        self.need_prometheus()
        scraper = self.prometheus(standing)
        harness.wait_until(lambda: self.asked(scraper, "vector(1)") == [1], "Prometheus answers")
        self.assertIn("parse error", self.refusal(scraper, "sum("))
        for title, expression in asked:
            self.assertIsNone(self.refusal(scraper, expression), title)
        for title, expression in of_agents:
            harness.wait_until(lambda asks=expression: self.asked(scraper, asks), f"an answer for {title}")
        self.await_value(scraper, of_agents[0][1], 2)

    def test_any_free_port_is_said_and_a_worker_has_not_the_variable(self):
        process = self.start("--nnodes=1", "--no-python", "sh", "-c", 'echo "has $DDPRUN_METRICS."; exec sleep 600',
                             DDPRUN_METRICS="127.0.0.1:0")
        said = process.stderr.readline()
        port = re.fullmatch(r"\[ddprun\] metrics at http://127\.0\.0\.1:(\d+)/metrics\n", said)
        self.assertTrue(port, said)
        self.await_page(int(port.group(1)), 'ddprun_workers{state="running"}', 1)
        self.assertEqual(process.stdout.readline(), "has .\n")
        process.terminate()
        self.finish(process)

    def test_a_port_that_is_taken_or_an_address_of_another_host_is_one_line(self):
        port = harness.free_port()
        process = self.node(port, "--no-python", "sleep", "600")
        harness.wait_until(lambda: answers(port), "the page is there")
        for value, what in ((f"127.0.0.1:{port}", "in use by"), ("192.0.2.1:1", "is not an address of this machine"),
                            ("127.0.0.1", "wants HOST:PORT"), ("9410", "wants HOST:PORT"), ("", "--metrics"),
                            ("127.0.0.1:65536", "port 65536 is above 65535")):
            done = self.finish(self.start("--nnodes=1", f"--metrics={value}", "--no-python", "true"))
            self.assertEqual((done.returncode, done.stdout), (2, ""), done.text)
            self.assertEqual(done.stderr.count("\n"), 1, done.stderr)
            self.assertIn("--metrics", done.stderr)
            self.assertIn(what, done.stderr)
        process.terminate()
        self.finish(process)


if __name__ == "__main__":
    harness.main()
