#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tests that a page that a user opens in a real Chromium can change nothing at a ddprund on the same machine."""
import getpass
import http.client
import http.server
import json
import os
import sys
import threading
import unittest

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "..", "..", "launcher"))
import harness  # noqa: E402
import browser  # noqa: E402

AGENT = os.path.join(harness.BIN, "ddprun-agent")

# The ways in which a page attacks. Each is a promise of a text that says what the page learned.
WAYS = {
    "plain text": "fetch(URL + '/v1/gangs', {method: 'POST', mode: 'no-cors', body: BODY}).then(() => 'sent')",
    "no type": "fetch(URL + '/v1/gangs', {method: 'POST', mode: 'no-cors', body: new Blob([BODY])}).then(() => 'sent')",
    "beacon": "Promise.resolve(navigator.sendBeacon(URL + '/v1/gangs', BODY) ? 'sent' : 'refused')",
    "form": """new Promise(done => {
        const frame = document.createElement('iframe'), form = document.createElement('form'), field = document.createElement('input');
        frame.name = 'hidden' + document.forms.length;
        document.body.append(frame, form);
        Object.assign(form, {method: 'POST', action: URL + '/v1/gangs', enctype: 'text/plain', target: frame.name});
        const cut = BODY.lastIndexOf('}');
        Object.assign(field, {name: BODY.slice(0, cut) + ',"x":"', value: '"}'});
        form.append(field);
        frame.onload = () => done('sent');
        form.submit();
    })""",
    "json": "fetch(URL + '/v1/gangs', {method: 'POST', headers: {'Content-Type': 'application/json'}, body: BODY}).then(a => a.text(), () => 'refused')",
    "delete": "fetch(URL + '/v1/gangs/kept', {method: 'DELETE'}).then(a => a.text(), () => 'refused')",
    "image": "new Promise(done => { const image = new Image(); image.onerror = () => done('refused'); image.onload = () => done('shown'); image.src = URL + '/v1/gangs'; })",
    "status": "fetch(URL + '/v1/status').then(a => a.text(), () => 'refused')",
    **{path: f"""new Promise(done => {{
        const socket = new WebSocket(URL.replace('http', 'ws') + '{path}');
        socket.onopen = () => done('open');
        socket.onerror = () => done('refused');
    }})""" for path in ("/v1/agent", "/v1/node", "/v1/watch")},
}
REFUSED = ("json", "delete", "image", "status", "/v1/agent", "/v1/node", "/v1/watch")


class Elsewhere(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.send_header("Content-Type", "text/html")
        self.end_headers()
        self.wfile.write(b"<!doctype html><title>a page</title><body>nothing to see</body>")

    def log_message(self, *_):
        pass


@unittest.skipUnless(browser.PROGRAM, browser.MISSING)
class BrowserPages(harness.Case):
    def setUp(self):
        self.place = self.scratch()
        self.daemon, self.endpoint = self.ddprund()
        agent = self.start(f"--rdzv-endpoint={self.endpoint}", f"--log-dir={self.place}", program=AGENT)
        self.await_line(agent, "connected to")
        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Elsewhere)
        self.addCleanup(self.server.server_close)
        self.addCleanup(self.server.shutdown)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        self.browser = browser.Browser("--host-resolver-rules=MAP evil.test 127.0.0.1")
        self.addCleanup(self.browser.close)
        self.page = self.browser.page()

    def gang(self, name):
        """Returns the JSON of a gang that creates a file on the node."""
        return json.dumps({"id": name, "user": getpass.getuser(), "uid": os.getuid(), "directory": "/",
                           "arguments": ["--no-python", "touch", os.path.join(self.place, name)]})

    def request(self, method, target, body=None):
        connection = http.client.HTTPConnection(*self.endpoint.split(":"), timeout=20)
        connection.request(method, target, body)
        answer = connection.getresponse()
        text = answer.read().decode()
        connection.close()
        return answer.status, text

    def gangs(self):
        return [each["id"] for each in json.loads(self.request("GET", "/v1/gangs")[1])["gangs"]]

    def tried(self, way, url):
        code = WAYS[way].replace("URL", json.dumps(url)).replace("BODY", json.dumps(self.gang("stranger")))
        return self.page.value(code)

    def test_a_page_of_another_origin(self):
        self.assertEqual(self.request("POST", "/v1/gangs", self.gang("kept"))[0], 201)
        harness.wait_until(lambda: os.path.exists(os.path.join(self.place, "kept")), "a program's own gang runs")
        self.page.open(f"http://127.0.0.1:{self.server.server_port}/")
        for host in ("127.0.0.1", "localhost"):
            for way in WAYS:
                with self.subTest(way, host=host):
                    found = self.tried(way, f"http://{host}:{self.endpoint.split(':')[1]}")
                    self.assertEqual(found, "refused" if way in REFUSED else "sent")
        self.assertEqual(self.gangs(), ["kept"])
        self.assertFalse(os.path.exists(os.path.join(self.place, "stranger")))
        said = self.await_line(self.daemon, "refused a request of 127.0.0.1:", "for programs, not for a page in a browser")
        self.assertTrue(said)

    def test_a_page_whose_name_was_made_to_lead_here(self):
        everywhere = self.ddprund("--insecure", "--listen=:0")[1]  # listens in both address families
        for endpoint in (self.endpoint, everywhere):
            with self.subTest(endpoint):
                own = f"http://evil.test:{endpoint.rsplit(':', 1)[1]}"
                for path in ("/", "/v1/jobs", "/v1/gangs", "/v1/status", "/metrics"):
                    self.page.open(own + path)
                    self.assertEqual(self.page.text().strip(),
                                     "its Host is no name of this machine: ask by an address or as localhost")
                for way in ("plain text", "json", "delete", "status"):
                    self.assertNotIn('"', self.tried(way, own), way)
                for way in ("/v1/agent", "/v1/node", "/v1/watch"):
                    self.assertEqual(self.tried(way, own), "refused", way)
        self.assertEqual(self.gangs(), [])

    def test_a_program_by_an_alias_of_this_machine(self):
        with open("/etc/hosts", encoding="utf-8") as file:
            names = [word for line in file if line.startswith("127.") for word in line.split("#")[0].split()[1:]]
        for name in {*names, "localhost"}:
            self.ddprunctl("jobs", f"--rdzv-endpoint={name}:{self.endpoint.split(':')[1]}", code=0)

    def test_its_own_page_by_its_own_names(self):
        for host in ("127.0.0.1", "localhost"):
            self.page.open(f"http://{host}:{self.endpoint.split(':')[1]}/")
            self.page.wait("document.querySelector('#connection').innerText === 'live'", f"it is connected by {host}")


if __name__ == "__main__":
    harness.main()
