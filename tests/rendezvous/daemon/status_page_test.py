#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tests the status page of a ddprund with a job of two nodes, in a real Chromium.

With DDPRUN_SCREENSHOTS=DIRECTORY it leaves pictures there.
"""
import http.client
import json
import os
import re
import signal
import socket
import sys
import unittest

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "..", "..", "launcher"))
import harness  # noqa: E402
import browser  # noqa: E402
import contrast  # noqa: E402

# As markup, this name would run a script.
NAME = "<img src=x onerror=alert(1)>"

# A worker that reports its losses, and prints its rank and step. Rank 0's steps take longer. A file ends it.
LOOP = """
import os, sys, time
import ddprun
rank, meet, round = int(os.environ["RANK"]), sys.argv[1], os.environ["DDPRUN_ROUND"]
open(f"{meet}/{round}.{rank}.tmp", "w").write(str(os.getpid()))
os.rename(f"{meet}/{round}.{rank}.tmp", f"{meet}/{round}.{rank}")
step = 0
while not os.path.exists(f"{meet}/end"):
    step += 1
    ddprun.step(step)
    ddprun.report(2.5 / (1 + 0.01 * step), 32)
    if step % 10 == 1:
        print(f"rank {rank} is at step {step} of", os.environ["TORCHELASTIC_RUN_ID"], flush=True)
    ddprun.step_parts(step=0.02, forward=0.006, backward=0.01, communication=0.004, exposed=0.002, loader=0.001 * rank, bytes=1e6)
    time.sleep(0.025)
"""

FOCUS = "(() => { const at = document.activeElement; return at.id || at.getAttribute('href') || at.className || at.tagName; })()"


@unittest.skipUnless(browser.PROGRAM, browser.MISSING)
class StatusPage(harness.Case):
    def setUp(self):
        self.browser = browser.Browser()
        self.addCleanup(self.browser.close)
        self.meet = self.scratch()

    def picture(self, page, name):
        directory = os.environ.get("DDPRUN_SCREENSHOTS")
        if directory:
            page.screenshot(os.path.join(directory, f"{name}.png"))

    def two_nodes(self, endpoint):
        flags = ["--nnodes=2", "--nproc_per_node=2", "--max-restarts=3", f"--rdzv-endpoint={endpoint}", f"--rdzv-id={NAME}"]
        return [self.start(*flags, sys.executable, "-c", LOOP, self.meet, PYTHONPATH=os.path.join(harness.SOURCE, "python"))
                for _ in range(2)]

    def worker(self, round_number, rank):
        path = os.path.join(self.meet, f"{round_number}.{rank}")
        harness.wait_until(lambda: os.path.exists(path), f"rank {rank} runs in round {round_number}")
        with open(path, encoding="utf-8") as file:
            return int(file.read())

    def test_ddprunctl_open_shows_one_browser_the_page_of_a_rendezvous_with_a_token(self):
        token = self.write(self.scratch(), "token", "0123456789abcdef" * 2, mode=0o600)
        port = harness.free_port()
        self.ddprund(f"--listen=127.0.0.1:{port}", f"--token-file={token}")
        opened = self.start("open", f"--rdzv-endpoint=127.0.0.1:{port}", f"--token-file={token}", program=harness.DDPRUNCTL)
        address = opened.stdout.readline().split()[1]
        host, own, path = re.search(r"http://([0-9.]+):(\d+)(/.*)", address).groups()

        def answer(path, **fields):
            connection = http.client.HTTPConnection(host, int(own), timeout=harness.TIMEOUT)
            connection.request("GET", path, headers=fields)
            return connection.getresponse().status

        idle = [socket.create_connection((host, int(own))) for _ in range(70)]  # idle connections must keep nobody out
        self.assertEqual(answer("/"), 403)
        idle[0].settimeout(harness.TIMEOUT)
        self.assertEqual(idle[0].recv(1), b"")  # the oldest ones are closed
        self.assertEqual(answer(path, Host="evil.example"), 403)
        page = self.browser.page()
        page.open(address)
        page.wait("document.querySelector('#connection')?.innerText === 'live'", "it is connected")
        self.assertIn("No job is here", page.text())
        self.assertEqual(page.value("location.href"), f"http://{host}:{own}/")
        self.assertEqual(answer(path), 403, "the address is good once")
        self.assertEqual(answer("/", Cookie="ddprun=" + "0" * 32), 403)
        opened.send_signal(signal.SIGINT)
        self.assertEqual(self.finish(opened).returncode, 128 + signal.SIGINT)
        for connection in idle:
            connection.close()

    def test_ddprunctl_open_gives_a_cookie_that_neither_scripts_nor_other_sites_have(self):
        port = harness.free_port()
        self.ddprund(f"--listen=127.0.0.1:{port}")
        opened = self.start("open", f"--rdzv-endpoint=127.0.0.1:{port}", program=harness.DDPRUNCTL)
        host, path = re.search(r"http://([0-9.:]+)(/\S*)", opened.stdout.readline()).groups()
        connection = http.client.HTTPConnection(host, timeout=harness.TIMEOUT)
        self.addCleanup(connection.close)
        connection.request("GET", path)
        cookie, *attributes = connection.getresponse().getheader("Set-Cookie").split("; ")
        self.assertRegex(cookie, "^ddprun=[0-9a-f]{32}$")
        self.assertEqual(sorted(attributes), ["HttpOnly", "Path=/", "SameSite=Strict"])

    def test_a_job_of_two_nodes_that_loses_a_worker(self):
        port = harness.free_port()
        daemon, _ = self.ddprund(f"--listen=127.0.0.1:{port}")
        page = self.browser.page()
        page.open(f"http://127.0.0.1:{port}/")
        page.wait("document.querySelector('#connection').innerText === 'live'", "it is connected")
        self.assertIn("No job is here", page.text())

        nodes = self.two_nodes(f"127.0.0.1:{port}")
        page.wait("document.querySelectorAll('#node_rows tr').length === 2", "both nodes are there")
        page.wait("document.querySelectorAll('#grid .cell.running').length === 4", "all ranks run")
        self.assertEqual(page.text("#job_name"), NAME)
        self.assertEqual(page.text("#legend").strip(), "running")
        self.assertEqual(page.value("document.querySelectorAll('img').length"), 0)
        page.wait("/loss [12]\\.\\d/.test(document.querySelector('#training_charts').innerText)", "the loss is shown")
        # A node's first report has only ranks with times. Its next report comes after 10 s at the earliest.
        page.wait("/\\d ranks?: a step takes \\d/.test(document.querySelector('#times_chart').innerText)", "step times of ranks are shown")
        self.assertIn("samples per second", page.text("#training_charts"))
        self.assertIn("waits for data", page.text("#parts"))
        # The page shows the step time that the programs report. Their agents measure a longer one.
        page.wait("/a step takes 20.0 ms/.test(document.querySelector('#times_chart').innerText)", "ranks' parts are of the job's step")
        self.assertRegex(page.text("#training_charts"), r"mean 20\.0 ms")
        page.wait("document.querySelector('#round_list .spent_running')?.style.flexGrow > 0", "the phase that lasts is in the round's bar")
        for part in ("#spent", "#round_list li"):
            self.assertRegex(page.text(part), r"training [\d.]+ s")
        self.assertEqual(page.value("getComputedStyle(document.querySelector('#spent .spent_running')).backgroundColor"),
                         page.value("getComputedStyle(document.querySelector('#round_list .spent_running')).backgroundColor"))

        self.check_keys(page)
        self.check_output(page)
        self.check_numbers(page)
        self.check_texts(page)
        self.check_charts(page)

        os.kill(self.worker(1, 3), signal.SIGKILL)
        page.wait("document.querySelector('#round_list').innerText.includes('Round 2')", "the restart is shown")
        page.wait("document.querySelector('#said').textContent.includes('round 2 began')", "it is said")
        cause = page.text("#round_list li:nth-child(2)")
        self.assertRegex(cause, r"rank 3 \(node 1, .*\) was killed by SIGKILL; restart 1 of 3")
        page.wait("document.querySelectorAll('#grid .cell.running').length === 4", "all ranks run again")
        self.assertRegex(page.text("#happenings"), r"round 2 began, since rank 3")
        self.assertIn("1 of 3", page.text("#numbers"))

        self.check_screen_reader(page)
        self.check_looks(page)
        self.assertEqual(page.complaints, [])
        outside = [url for url in page.requests if not url.startswith("data:")]  # the page contains its own symbol
        self.assertEqual(outside, [f"http://127.0.0.1:{port}/", f"ws://127.0.0.1:{port}/v1/watch"])

        daemon.kill()
        page.wait("/^connection lost – showing state of \\d\\d:\\d\\d:\\d\\d/.test(document.querySelector('#connection').innerText)",
                  "it says that the connection is lost")
        self.assertEqual(page.text("#job_name"), NAME)
        self.ddprund(f"--listen=127.0.0.1:{port}")
        page.wait("document.querySelector('#connection').innerText === 'live'", "it is connected again")
        for node in nodes:
            node.kill()

    def check_keys(self, page):
        page.value("document.activeElement.blur()")
        stops = []
        for _ in range(16):
            page.press("Tab")
            stops.append(page.value(FOCUS))
            if stops[-1] == "BODY":
                break
        self.assertEqual(stops[:3], ["#main", "#job=" + page.value(f"encodeURIComponent({NAME!r})"), "grid"], stops)
        self.assertIn("BODY", stops, "focus is not trapped")
        page.value("document.querySelector('#grid').focus()")
        shown = lambda: re.match(r"rank \d", page.text("#rank_detail")).group()  # noqa: E731
        found = [shown()]
        for key in ("ArrowRight", "ArrowDown", "ArrowUp", "ArrowLeft", "End", "ArrowRight", "Home"):
            page.press(key)
            found.append(shown())
        self.assertEqual(found, [f"rank {rank}" for rank in (0, 1, 3, 1, 0, 3, 3, 0)])
        self.assertRegex(page.text("#rank_detail"), r"rank 0 · running · on node 0 \(.*\), 127\.0\.0\.1( · of a step [\d.]+ (ms|µs) is its own part)?$")

    # Selects a rank of the other node. Its lines come, and go on coming until another rank is selected.
    def check_output(self, page):
        lines = lambda: page.text("#output_lines")  # noqa: E731
        page.value("document.querySelector('#grid').focus()")
        page.press("End")
        page.press("Enter")
        page.wait("document.querySelector('#output_lines').innerText.includes('rank 3 is at step')", "rank 3's lines are shown")
        self.assertIn(NAME, lines())
        self.assertEqual(page.text("#output_title"), "Output of rank 3")
        before = lines().splitlines()[-1]
        page.wait(f"document.querySelector('#output_lines').innerText.trim().split('\\n').at(-1) !== {before!r}", "newer lines come")
        page.value("document.querySelectorAll('#grid .cell')[1].click()")
        page.wait("document.querySelector('#output_lines').innerText.includes('rank 1 is at step')", "rank 1's lines are shown")
        self.assertNotIn("rank 3", lines())
        self.assertIn(("log", "Output of rank 1"), page.accessible())
        page.value("document.querySelector('#output_rank').value = 9; document.querySelector('#output_show').click()")
        page.wait("document.querySelector('#output_note').innerText === 'there is no rank 9 in round 1'", "why there are none")
        page.value("document.querySelector('#output_rank').value = 3; document.querySelector('#output_show').click()")
        page.wait("document.querySelector('#output_lines').innerText.includes('rank 3 is at step')", "rank 3's lines are shown again")

    # Each case of number_texts_test.cc whose number JavaScript can hold gives the text of ctl/number_texts.h.
    def check_numbers(self, page):
        with open(os.path.join(harness.SOURCE, "tests/ctl/number_texts_test.cc"), encoding="utf-8") as file:
            cases = re.findall(r'CHECK\((\w+_text)\(([^(){}a-df-z]+)\) == "([^"]*)"\);', file.read())
        cases = [(name, value.replace("'", ""), text) for name, value, text in cases if not name.startswith(("whole", "count"))]
        cases += [(f"{unit}_text", value, "–") for unit in ("number", "bytes", "rate", "percent", "seconds") for value in ("NaN", "Infinity")]
        self.assertGreater(len(cases), 40)
        self.assertIn(("seconds_text", "3 * 3600 - 1", "3 h 0 min"), cases)
        shown = page.value("[" + ", ".join(f"{name}({value})" for name, value, _ in cases) + "]")
        self.assertEqual(shown, [text for _, _, text in cases])

    def check_texts(self, page):
        cases = (("loss_text({loss: 2.5, nan_ranks: 0})", "2.50"), ("loss_text({loss: 2.5})", "2.50"),
                 ("loss_text({loss: null, nan_ranks: 1})", "NaN on 1 rank"), ("loss_text({loss: null})", ""),
                 ("loss_text({loss: 2.5, nan_ranks: 3})", "2.50, NaN on 3 ranks"),
                 ("budget_text(1, 3)", "1 of 3"), ("budget_text(4, 3)", "4, 3 allowed"), ("budget_text(0, 0)", "0, none allowed"),
                 ("seen_text('a\\u202eb\\u009bc\\u2028')", "a\\u202eb\\u009bc\\u2028"),
                 ("seen_text('\u00e4 \u2026\\n\\t\u4e2d')", "\u00e4 \u2026\n\t\u4e2d"))
        self.assertEqual(page.value("[" + ", ".join(call for call, _ in cases) + "]"), [text for _, text in cases])
        page.value("put(document.querySelector('#job_name'), 'a\\u202eb')")
        self.assertEqual(page.text("#job_name"), "a\\u202eb")
        page.wait(f"document.querySelector('#job_name').innerText === {json.dumps(NAME)}", "the name is shown again")

    # Checks that values lie at the right places, in the page's colours, and that an update changes the drawing.
    def check_charts(self, page):
        drawn = page.value("""(() => {
          const chart = new LineChart("t"), series = new Series(), texts = () => ["now", "range", "span"].map((part) => chart.part(part).textContent);
          // How high each point of the marks and of the line is; labels of the axis.
          const heights = () => [...chart.element.querySelectorAll("path")].slice(1)
            .map((path) => [...path.getAttribute("d").matchAll(/[ML][\\d.]+ ([\\d.]+)/g)].map((found) => Number(found[1])));
          const axis = () => [...chart.element.querySelectorAll("text")].map((each) => each.textContent);
          const draw = (top) => chart.draw({ lines: [{ series }], text: number_text, marks: [11000, 9], top });
          series.add(10000, 0);
          draw();
          const zero = [heights(), axis(), texts()];
          series.values[0] = 1;
          series.add(11000, 3);
          series.add(12000, 2);
          draw();
          const later = [heights(), axis(), texts()];
          draw(6);
          const scaled = [heights(), axis()];
          const pointed = [5, 160, 299].map((clientX) => {
            chart.svg.dispatchEvent(new PointerEvent("pointermove", { clientX }));
            return texts()[0].replace(/\\d\\d:\\d\\d:\\d\\d/, "TIME");
          });
          chart.svg.dispatchEvent(new PointerEvent("pointerleave"));
          return [zero, later, scaled, [...pointed, texts()[0]]];
        })()""")
        self.assertEqual(drawn, [
            [[[10, 96], [96, 96]], ["0", "0.5", "1", "0:00:00", "0:00:01"], ["0", "0", "since now"]],
            [[[10, 96], [96, 10, 53]], ["1", "1.5", "2", "2.5", "3", "0:00:00", "0:00:01", "0:00:02"],
             ["2", "1 to 3", "over 2.0 s; red dashes: a round began"]],
            [[[10, 96], [81.7, 53, 67.3]], ["0", "2", "4", "6", "0:00:00", "0:00:01", "0:00:02"]],
            ["1 at TIME", "3 at TIME", "2 at TIME", "2"]])
        bars = page.value("""(() => {
          const bars = new RankBars();
          bars.draw([[1, 190, 50], [0, 180, 100]], new Set([1]), 200e-6);
          return [...bars.element.querySelectorAll("path")].map((each) => each.getAttribute("d"));
        })()""")
        self.assertEqual(bars, ["M0 4H0.8V100H0ZM1 4H1.8V100H1Z", "M0 52H0.8V100H0ZM1 76H1.8V100H1Z", "M1.4 0L1.4 100"])
        page.wait("document.querySelector('#training_charts path.line:last-of-type').getAttribute('d').startsWith('M')", "the loss is drawn")
        for paint, path in (("blue", "#training_charts path:nth-of-type(3)"), ("blue-fill", "#times_chart path:nth-of-type(2)")):
            colours = page.value(f"((style) => [style.color, style.stroke, style.fill])(getComputedStyle(document.querySelector('{path}')))")
            page.value("document.body.insertAdjacentHTML('beforeend', '<i id=probe></i>')")
            page.value(f"document.querySelector('#probe').style.color = 'var(--{paint})'")
            self.assertEqual(colours[0], page.value("getComputedStyle(document.querySelector('#probe')).color"))
            self.assertIn(colours[0], colours[1:])
            page.value("document.querySelector('#probe').remove()")

    def check_screen_reader(self, page):
        seen = page.accessible()
        for wanted in (("heading", "Ranks"), ("listbox", "Ranks"), ("option", "rank 3: running"), ("navigation", "Jobs"),
                       ("heading", "Rounds"), ("columnheader", "host"), ("main", "")):
            self.assertIn(wanted, seen)
        self.assertEqual(sum(role == "option" for role, _ in seen), 4)
        self.assertEqual([each for each in seen if each[0] in ("link", "button", "listbox") and not each[1]], [])

    def check_looks(self, page):
        for dark in (False, True):
            page.theme(dark)
            self.assertEqual(page.value(contrast.FAINT), [], f"dark: {dark}")
            self.picture(page, "dark" if dark else "light")
        grounds = []
        for dark in (False, True):
            page.theme(dark)
            grounds.append(page.value("getComputedStyle(document.body).backgroundColor"))
        self.assertNotEqual(*grounds)
        for width in (360, 768, 1280):
            page.resize(width, 800)
            self.assertLessEqual(page.value("document.documentElement.scrollWidth"), width)
            if width == 360:
                self.picture(page, "narrow")

    def test_it_is_the_page_of_a_job_that_serves_itself_too_and_its_end_is_said(self):
        port = harness.free_port()
        nodes = self.two_nodes(f"127.0.0.1:{port}")
        self.worker(1, 0)
        page = self.browser.page()
        page.open(f"http://127.0.0.1:{port}/")
        page.wait("document.querySelectorAll('#grid .cell.running').length === 4", "all ranks run")
        self.assertIn("ddprun, ", page.text("#facts"))
        self.write(self.meet, "end", "")
        page.wait("/^connection lost/.test(document.querySelector('#connection').innerText)", "the rendezvous ends with its job")
        for node in nodes:
            self.assertEqual(self.finish(node).returncode, 0)

    def test_jobs_that_are_over_and_one_that_waits_for_nodes(self):
        _, endpoint = self.ddprund()
        done = self.ddprun(f"--rdzv-endpoint={endpoint}", "--rdzv-id=failed", "--nnodes=1", "--no-python", "sh", "-c", "exit 9")
        self.assertEqual(done.returncode, 9)
        waits = self.start(f"--rdzv-endpoint={endpoint}", "--rdzv-id=waits", "--nnodes=3", "--no-python", "true")
        page = self.browser.page()
        page.open(f"http://{endpoint}/#job=waits")
        page.wait("document.querySelector('#waits').innerText === 'waits for 2 more nodes: 1 of 3 are here'", "who is waited for")
        self.assertIn("nodes\n1 of 3\nworker failures", page.text("#numbers"))  # ranks are not shown
        self.assertIn("1 of 3 nodes", page.text("#live"))
        self.assertEqual(page.value("document.querySelectorAll('#grid .cell').length"), 1)
        page.value("document.querySelector('#over summary').click()")
        page.value("document.querySelector('#finished a').click()")
        page.wait("document.querySelector('#job_name').innerText === 'failed'", "the one that is over is shown")
        self.assertIn("failed with exit code 9", page.text("#reason"))
        self.assertEqual(page.text("#job_phase"), "failed")
        waits.kill()
        page.wait("document.querySelector('#no_jobs').innerText === 'none is live'", "beside those that are over none is said to have been")
        self.assertEqual(page.complaints, [])


if __name__ == "__main__":
    harness.main()
