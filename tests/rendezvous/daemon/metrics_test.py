#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tests GET /metrics of a daemon: its page, with Prometheus' own checks, and with a real Prometheus."""
import os
import shutil
import socket
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "..", "..", "launcher"))
import harness  # noqa: E402
import prometheus  # noqa: E402
from prometheus import answers, page, samples  # noqa: E402

OPEN_METRICS = "application/openmetrics-text"
ENDLESS = ': >"$MEET/$RANK"; exec sleep 600'


class Metrics(prometheus.Case):
    def served(self, *args):
        port = harness.free_port()
        self.start(f"--listen=127.0.0.1:{port}", *args, program=harness.DDPRUND)
        harness.wait_until(lambda: answers(port), "ddprund serves")
        return port

    def two_nodes(self, endpoint, script, *flags):
        """Starts two nodes. Returns the directory in which their workers write that they run, and the two processes."""
        directory = tempfile.mkdtemp()
        self.addCleanup(shutil.rmtree, directory)
        args = ["--nproc_per_node=2", f"--rdzv-endpoint={endpoint}", "--rdzv-id=job", *flags, "--no-python", "sh", "-c", script]
        return directory, [self.start(*args, MEET=directory) for _ in range(2)]

    def test_the_page_is_there_before_any_job_with_all_of_its_series(self):
        port = self.served()
        status, kind, text = page(port)
        self.assertEqual((status, kind), (200, "text/plain; version=0.0.4; charset=utf-8"))
        found = samples(text)
        for series in ('ddprun_jobs{phase="running"}', 'ddprun_jobs_ended_total{result="success"}', "ddprun_agents",
                       'ddprun_store_keys{store="plain"}'):
            self.assertEqual(found[series], 0, series)
        for series in ("ddprun_rendezvous_rounds_total", 'ddprun_rendezvous_round_ends_total{cause="node_lost"}',
                       "ddprun_rendezvous_duration_seconds_count", "ddprun_rendezvous_waiting_nodes",
                       'ddprun_job_seconds_total{phase="running"}', "ddprun_job_redone_seconds_total"):
            self.assertEqual(found[series], 0, series)
        self.assertEqual(found["ddprun_leader"], 1)
        self.assertEqual(found['ddprun_connections_total{kind="page"}'], 2)  # /healthz counts, too
        for series in ("process_cpu_seconds_total", "process_open_fds", "process_resident_memory_bytes",
                       "process_start_time_seconds"):
            self.assertGreater(found[series], 0, series)
        self.assertNotIn("ddprun_journal_kept", found)
        self.assertRegex(text, "# HELP ddprun_job_seconds_total .* Phase running has ddprun_job_redone_seconds_total in it")

    def test_open_metrics_is_said_where_it_is_asked_for(self):
        _, kind, text = page(self.served(), accept=OPEN_METRICS)
        self.assertEqual(kind, OPEN_METRICS + "; version=1.0.0; charset=utf-8")
        self.assertIn("# TYPE ddprun_jobs_ended counter\nddprun_jobs_ended_total{result=\"success\"} 0\n", text)
        self.assertTrue(text.endswith("\n# EOF\n"))

    def test_it_is_behind_the_door_of_the_other_pages_with_a_token(self):
        with tempfile.NamedTemporaryFile("w") as secret:
            secret.write("0123456789abcdef0123456789abcdef")
            secret.flush()
            port = self.served(f"--token-file={secret.name}")
            self.assertEqual(page(port)[0], 401)

    def test_a_real_prometheus_reads_it_by_a_bearer_token_of_its_own(self):
        self.need_prometheus()
        directory = tempfile.mkdtemp()
        self.addCleanup(shutil.rmtree, directory)
        files = {}
        for name in ("jobs", "scrapes"):
            files[name] = os.path.join(directory, name)
            with open(os.open(files[name], os.O_WRONLY | os.O_CREAT, 0o600), "w", encoding="ascii") as f:
                f.write(name * 8)
        port = self.served(f"--token-file={files['jobs']}", f"--scrape-token-file={files['scrapes']}")
        scraper = self.prometheus(port, more=f"  authorization: {{credentials_file: {files['scrapes']}}}\n")
        self.await_value(scraper, "up", 1)
        self.assertEqual(page(port, bearer="scrapes" * 8, path="/v1/jobs")[0], 200)
        self.assertEqual(page(port, bearer="scrapes" * 8, scheme="bEARER")[0], 200)
        for refused in ({"bearer": "jobs" * 8}, {"bearer": "scrapes" * 7}, {"bearer": "scrapes" * 8, "path": "/v1/watch"}):
            self.assertEqual(page(port, **refused)[0], 401, refused)
        self.assertEqual(page(port, bearer="scrapes" * 8, method="POST", path="/v1/gangs")[0], 401)

    def test_a_bearer_token_that_others_could_read_on_the_way_is_refused(self):
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            try:
                probe.connect(("192.0.2.1", 9))
            except OSError:
                self.skipTest("this machine has no address but loopback")
            own = probe.getsockname()[0]
        with tempfile.NamedTemporaryFile("w") as secret:
            secret.write("0123456789abcdef0123456789abcdef")
            secret.flush()
            port = harness.free_port()
            self.start(f"--listen={own}:{port}", f"--token-file={secret.name}", f"--scrape-token-file={secret.name}",
                       program=harness.DDPRUND)

            def refused():
                try:
                    return page(port, bearer="0123456789abcdef" * 2, host=own)
                except ConnectionRefusedError:
                    return None
            harness.wait_until(refused, "ddprund serves")
            self.assertEqual(refused()[0::2], (401, "a bearer token without TLS is taken on loopback alone\n"))

    def test_a_job_of_two_nodes_as_a_real_prometheus_sees_it(self):
        self.need_prometheus()
        state = tempfile.mkdtemp()
        self.addCleanup(shutil.rmtree, state)
        port = self.served(f"--state-dir={state}")
        meet, nodes = self.two_nodes(f"127.0.0.1:{port}", ENDLESS, "--nnodes=2")
        harness.wait_until(lambda: len(os.listdir(meet)) == 4, "four workers run")
        scraper = self.prometheus(port)
        want = {'ddprun_rendezvous_rounds_total': 1, 'ddprun_rendezvous_duration_seconds_count': 1,
                'ddprun_rendezvous_waiting_nodes': 0, 'ddprun_jobs{phase="running"}': 1, 'ddprun_agents': 2, 'ddprun_jobs{phase="forming"}': 0,
                'ddprun_connections_total{kind="agent"}': 2, 'up': 1, 'ddprun_journal_kept': 1}
        for series, value in want.items():
            self.await_value(scraper, series, value)
        nodes[0].terminate()
        for node in nodes:
            self.finish(node)
        for series, value in (('ddprun_jobs_ended_total{result="failure"}', 1), ("ddprun_agents", 0),
                              ('ddprun_rendezvous_round_ends_total{cause="node_left"}', 1),
                              ('sum(ddprun_rendezvous_round_ends_total)', 1),
                              ('ddprun_job_seconds_total{phase="running"} > bool 0', 1)):
            self.await_value(scraper, series, value)
        names = self.label_names(scraper)
        ours = {"__name__", "instance", "job"}  # the labels that Prometheus adds
        self.assertLessEqual(names, ours | {"phase", "cause", "le", "result", "kind", "awaits", "store", "program", "version"})
        self.check(port)


if __name__ == "__main__":
    harness.main()
