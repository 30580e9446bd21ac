# SPDX-License-Identifier: Apache-2.0
"""Reads pages of metrics: itself, by Prometheus' own checks, and by a real Prometheus."""
import http.client
import json
import os
import shutil
import subprocess
import tempfile
import urllib.error
import urllib.parse
import urllib.request

import harness

PATH = os.path.join(harness.SOURCE, ".cache/prometheus/usr/bin") + ":" + os.environ.get("PATH", "")
PROMETHEUS, PROMTOOL = (shutil.which(name, path=PATH) for name in ("prometheus", "promtool"))
CONFIGURATION = """global: {{scrape_interval: 200ms, scrape_timeout: 200ms}}
scrape_configs:
- job_name: ddprun
  static_configs: [{{targets: {targets}}}]
{more}"""


def page(port, accept=None, path="/metrics", bearer=None, method="GET", host="127.0.0.1", scheme="Bearer"):
    connection = http.client.HTTPConnection(host, port, timeout=harness.TIMEOUT)
    headers = {"Accept": accept, "Authorization": bearer and f"{scheme} {bearer}"}
    connection.request(method, path, headers={name: value for name, value in headers.items() if value})
    answer = connection.getresponse()
    return answer.status, answer.getheader("Content-Type"), answer.read().decode()


def samples(text):
    """Returns {'NAME{LABELS}': value}."""
    return {series: float(value) for series, value in
            (line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#"))}


def answers(port):
    try:
        return page(port, path="/healthz")[0] == 200
    except OSError:
        return False


class Case(harness.Case):
    def need_prometheus(self):
        if not PROMETHEUS or not PROMTOOL:
            self.skipTest("no Prometheus here (scripts/setup.sh full)")

    def prometheus(self, *ports, more=""):
        """Starts a Prometheus that scrapes these endpoints. Returns its own port. `more`: lines of its scrape
        configuration."""
        directory = tempfile.mkdtemp()
        self.addCleanup(shutil.rmtree, directory, ignore_errors=True)
        configuration = os.path.join(directory, "prometheus.yml")
        with open(configuration, "w", encoding="utf-8") as file:
            file.write(CONFIGURATION.format(targets=json.dumps([f"127.0.0.1:{port}" for port in ports]), more=more))
        own = harness.free_port()
        self.start(f"--config.file={configuration}", f"--storage.tsdb.path={directory}/data",
                   f"--web.listen-address=127.0.0.1:{own}", "--log.level=error", program=PROMETHEUS)
        return own

    def asked(self, prometheus, query):
        """Returns the values of all series that match; [] before Prometheus is up."""
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{prometheus}/api/v1/query?" +
                                        urllib.parse.urlencode({"query": query}), timeout=harness.TIMEOUT) as answer:
                return [float(found["value"][1]) for found in json.load(answer)["data"]["result"]]
        except (urllib.error.URLError, ConnectionError):
            return []

    def refusal(self, prometheus, query):
        """Returns the reason why Prometheus refuses the query; None: it accepts it."""
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{prometheus}/api/v1/query?" +
                                        urllib.parse.urlencode({"query": query}), timeout=harness.TIMEOUT):
                return None
        except urllib.error.HTTPError as refused:
            return refused.read().decode()

    def await_value(self, prometheus, series, value):
        harness.wait_until(lambda: self.asked(prometheus, series) == [value], f"{series} is {value}")

    def label_names(self, prometheus):
        with urllib.request.urlopen(f"http://127.0.0.1:{prometheus}/api/v1/labels", timeout=harness.TIMEOUT) as answer:
            return set(json.load(answer)["data"])

    def check(self, port):
        done = subprocess.run([PROMTOOL, "check", "metrics"], input=page(port)[2], capture_output=True, text=True,
                              timeout=harness.TIMEOUT)
        self.assertEqual((done.returncode, done.stdout, done.stderr), (0, "", ""))
