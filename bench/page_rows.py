# SPDX-License-Identifier: Apache-2.0
"""The row about the status page of 1,000 emulated ranks, in a headless Chromium. No peer: torchrun has no page."""
import subprocess

from measure import Missing, environment, program
from row import OURS, Goal, Row

import browser  # of tests/support, where measure looks

NODES, WORKERS = 125, 8
UPDATES = 20
# Sets window.ranks_ms to the time of the first frame with the ranks, by the page's clock.
WATCH = """
addEventListener("DOMContentLoaded", () => {
  const look = () => {
    if (!document.querySelector("#grid .cell.running")) return requestAnimationFrame(look);
    requestAnimationFrame(() => setTimeout(() => { window.ranks_ms = performance.now(); }));
  };
  look();
});
window.longest_ms = 0;
new PerformanceObserver((list) => {
  for (const entry of list.getEntries()) window.longest_ms = Math.max(window.longest_ms, entry.duration);
}).observe({ type: "longtask" });
"""
# Adds the figures that emulated workers lack: step times of all ranks, training, and nodes' usage. Each update changes
# all of them.
FILL = """((state) => {
  const some = (low, high) => low + Math.random() * (high - low);
  for (const job of state.jobs.jobs) {
    let rank = 0;
    for (const node of job.nodes) {
      node.step_times = Array.from({ length: node.num_workers }, () => [rank++, Math.round(some(40000, 52000)), Math.round(some(20000, 30000))]);
      node.monitor = { cpu: some(0.2, 0.5), memory_used_bytes: some(1e11, 2e11), memory_bytes: 1e12, received_bytes_per_second: some(1e9, 2e9),
        sent_bytes_per_second: some(1e9, 2e9), tcp_retransmits_per_second: some(0, 3),
        gpus: Array.from({ length: 8 }, () => ({ use: some(0.8, 1), memory_used_bytes: 6e10, memory_bytes: 8e10, watts: some(500, 700), celsius: some(50, 70) })) };
    }
    const slow = job.nodes[Math.min(3, job.nodes.length - 1)].step_times[2];
    slow[1] = slow[2] = 95000;
    job.stragglers = [`rank ${slow[0]} (node 3, ${job.nodes[0].host}): 95.0 ms of its own per step, the median of ${rank} ranks is 25.0 ms`];
    const spread = (mean) => ({ mean, worst: mean * some(1.1, 1.5), worst_rank: 26 });
    const seen = (window.filled = (window.filled ?? 0) + 1);
    job.training = { phase: "train", step: 1000 + 20 * seen, loss: 2.2 / Math.sqrt(seen) + some(0, 0.05), samples_per_second: some(80000, 84000),
      step_parts: { ranks: rank, step_seconds: spread(0.046), forward_seconds: spread(0.012), backward_seconds: spread(0.024), communication_seconds: spread(0.014),
        exposed_seconds: spread(0.006), loader_seconds: spread(0.001), overlap: { mean: 0.57, worst: 0.4, worst_rank: 26 }, bytes_per_step: 1.4e9 } };
  }
  return state;
})"""
# Shows the last state again, with new figures.
AGAIN = f"""(async () => {{
  const {{ model }} = page_link.view;
  const state = {FILL}({{ type: "state", status: model.status, hidden_nodes: [], hidden_finished: 0,
    jobs: {{ jobs: model.jobs.map(({{ in_order, ...job }}) => structuredClone(job)), finished: [] }} }});
  const text = JSON.stringify(state);
  window.state_bytes = text.length;
  await new Promise(requestAnimationFrame);
  page_link.take(JSON.parse(text));
  await new Promise((done) => requestAnimationFrame(() => setTimeout(done)));
}})()"""


class Emulated:
    """A browser, and a ddprund with a job of 1,000 ranks that runs for a while."""

    def __enter__(self):
        if not browser.PROGRAM:
            raise Missing(browser.MISSING)
        self.daemon = subprocess.Popen([program("ddprund"), "--listen=127.0.0.1:0"], env=environment(), text=True, stderr=subprocess.PIPE)
        self.endpoint = next(line for line in self.daemon.stderr if "listening on " in line).split()[-1]
        self.job = subprocess.Popen(
            [program("fleet_load"), f"--rdzv-endpoint={self.endpoint}", f"--agents={NODES}", f"--nproc-per-node={WORKERS}",
             "--duration=300", "--kills=1", "--losses=0"], env=environment(), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        self.browser = browser.Browser()
        return self

    def __exit__(self, *_):
        self.browser.close()
        for process in (self.job, self.daemon):
            process.kill()
            process.wait()
        self.daemon.stderr.close()

    def page(self, **options):
        """Opens a tab and waits until it shows the ranks."""
        page = self.browser.page(script=WATCH, **options)
        page.open(f"http://{self.endpoint}/")
        page.wait("window.ranks_ms > 0", "the ranks are shown")
        return page


def status_page():
    with Emulated() as emulated:
        warm = emulated.page()  # warms up: a browser's first page costs more
        warm.wait(f"document.querySelectorAll('#grid .cell.running').length === {NODES * WORKERS}", "all run")
        state_kb = warm.value("JSON.stringify(page_link.view.model.jobs.map(({ in_order, ...job }) => job)).length") / 1e3
        warm.close()
        page = emulated.page()
        first = {"first paint (ms)": page.value("performance.getEntriesByName('first-contentful-paint')[0].startTime"),
                 "ranks are shown (ms)": page.value("window.ranks_ms")}
        page.value(AGAIN)  # builds the charts
        page.value("window.longest_ms = 0")
        before = page.measures()["TaskDuration"]
        for _ in range(UPDATES):
            page.value(AGAIN)
        used = page.measures()["TaskDuration"] - before
        return {**first, "main thread per update (ms)": 1e3 * used / UPDATES, "state, emulated (KB)": state_kb,
                "state, all figures (KB)": page.value("window.state_bytes") / 1e3,
                "longest task (ms; 0: none of 50)": page.value("window.longest_ms")}


def rows():
    return [Row("status-page", f"the status page, {NODES} nodes × {WORKERS} ranks, headless Chromium on loopback", {OURS: status_page},
                [Goal("first paint (ms)", 200), Goal("ranks are shown (ms)", 200), Goal("main thread per update (ms)", 50)], repeats=3,
                note="Times are from the navigation, beside a `fleet_load` on the same cores. An "
                     "update has new figures for every rank and node, 8 GPUs a node")]
