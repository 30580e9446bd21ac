# SPDX-License-Identifier: Apache-2.0
"""A headless Chromium, driven over its debugging pipe (Chrome DevTools Protocol). Every wait has a deadline."""
import base64
import json
import os
import select
import shutil
import subprocess
import tempfile
import time

PROGRAM = next(filter(None, map(shutil.which, ("chromium-headless-shell", "chromium", "google-chrome"))), None)
MISSING = "no Chromium here (scripts/setup.sh full)"
SECONDS = 30
# Makes the pipe's two ends descriptors 3 and 4, which Chromium uses.
WITH_PIPE = 'exec "$0" "${@:3}" 3<&"$1" 4>&"$2"'


class Failed(AssertionError):
    """The browser failed to do something, or didn't answer in time."""


class Browser:
    """A browser's process; close() ends it."""

    def __init__(self, *flags):
        self.directory = tempfile.mkdtemp(prefix="ddprun-browser-")
        ours_in, theirs_out = os.pipe()
        theirs_in, ours_out = os.pipe()
        # Chromium's sandbox doesn't work for root. Tests only open pages of our own, so they do without.
        sandbox = ["--no-sandbox"] if os.getuid() == 0 else []
        self.process = subprocess.Popen(
            ["bash", "-c", WITH_PIPE, PROGRAM, str(theirs_in), str(theirs_out), "--headless", *sandbox,
             "--remote-debugging-pipe", f"--user-data-dir={self.directory}", "--disable-gpu",
             "--disable-dev-shm-usage", "--disable-background-networking", "--disable-component-update",
             "--no-first-run", "--hide-scrollbars", *flags, "about:blank"],
            pass_fds=(theirs_in, theirs_out), stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL, start_new_session=True)
        os.close(theirs_in)
        os.close(theirs_out)
        self.incoming, self.outgoing = ours_in, ours_out
        self.unread = b""
        self.number = 0
        self.pages = {}

    def close(self):
        self.process.kill()
        self.process.wait()
        os.close(self.incoming)
        os.close(self.outgoing)
        shutil.rmtree(self.directory, ignore_errors=True)

    def call(self, method, session=None, seconds=SECONDS, **params):
        self.number += 1
        wanted = self.number
        message = {"id": wanted, "method": method, "params": params, **({"sessionId": session} if session else {})}
        os.write(self.outgoing, json.dumps(message).encode() + b"\0")
        deadline = time.monotonic() + seconds
        while True:
            answer = self.receive(deadline)
            if answer is None:
                raise Failed(f"{method}: no answer within {seconds} s")
            if answer.get("id") == wanted:
                if "error" in answer:
                    raise Failed(f"{method}: {answer['error']['message']}")
                return answer["result"]

    def receive(self, deadline):
        """Returns the next message; None: none came until the deadline. An event also goes to its page."""
        while b"\0" not in self.unread:
            if not select.select([self.incoming], [], [], max(0, deadline - time.monotonic()))[0]:
                return None
            more = os.read(self.incoming, 1 << 20)
            if not more:
                raise Failed("the browser has ended")
            self.unread += more
        text, self.unread = self.unread.split(b"\0", 1)
        message = json.loads(text)
        page = self.pages.get(message.get("sessionId"))
        if page and "method" in message:
            page.happened(message["method"], message["params"])
        return message

    def page(self, **options):
        return Page(self, **options)


class Page:
    """A tab. `requests`: the addresses that it asked for. `complaints`: the lines of its console, and exceptions."""

    def __init__(self, browser, width=1280, height=900, dark=False, script=""):
        self.browser = browser
        self.requests, self.complaints = [], []
        self.is_loaded = False
        self.target = browser.call("Target.createTarget", url="about:blank")["targetId"]
        self.session = browser.call("Target.attachToTarget", targetId=self.target, flatten=True)["sessionId"]
        browser.pages[self.session] = self
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.call(f"{domain}.enable")
        self.call("Performance.enable", timeDomain="threadTicks")  # so other work of the cores doesn't count
        self.resize(width, height)
        self.theme(dark)
        if script:  # it runs before the scripts of a page
            self.call("Page.addScriptToEvaluateOnNewDocument", source=script)

    def close(self):
        self.browser.call("Target.closeTarget", targetId=self.target)

    def call(self, method, **params):
        return self.browser.call(method, session=self.session, **params)

    def happened(self, method, params):
        if method == "Network.requestWillBeSent":
            self.requests.append(params["request"]["url"])
        elif method == "Page.loadEventFired":
            self.is_loaded = True
        elif method == "Network.webSocketCreated":
            self.requests.append(params["url"])
        elif method == "Runtime.consoleAPICalled":
            self.complaints.append(" ".join(str(each.get("value")) for each in params["args"]))
        elif method == "Runtime.exceptionThrown":
            details = params["exceptionDetails"]
            self.complaints.append(details.get("exception", {}).get("description", details["text"]))
        elif method == "Log.entryAdded":
            self.complaints.append(params["entry"]["text"])

    def resize(self, width, height):
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)

    def theme(self, dark):
        features = [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
        self.call("Emulation.setEmulatedMedia", features=features)

    def open(self, address):
        """Opens the address. Returns when its document is loaded."""
        self.is_loaded = False
        failed = self.call("Page.navigate", url=address).get("errorText")
        if failed:
            raise Failed(f"{address}: {failed}")
        deadline = time.monotonic() + SECONDS
        while not self.is_loaded:
            if self.browser.receive(deadline) is None:
                raise Failed(f"{address}: not loaded within {SECONDS} s")

    def value(self, expression):
        """Returns the value of `expression` in the page. Waits for a promise."""
        found = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in found:
            raise Failed(f"{expression}: {found['exceptionDetails']}")
        return found["result"].get("value")

    def is_true(self, expression):
        try:
            return self.value(expression)
        except Failed as error:
            if "target navigated" in str(error):  # another document is being loaded
                return False
            raise

    def wait(self, expression, what, seconds=SECONDS):
        """Waits until `expression` is true in the page, or in the page that follows it."""
        deadline = time.monotonic() + seconds
        while not self.is_true(expression):
            if time.monotonic() > deadline:
                raise Failed(f"not within {seconds} s: {what}; the page says:\n{self.text()}")
            self.browser.receive(time.monotonic() + 0.02)

    def text(self, selector="body"):
        return self.value(f"document.querySelector({json.dumps(selector)})?.innerText ?? ''")

    def press(self, key, code=0):
        codes = {"Tab": 9, "Enter": 13, "ArrowRight": 39, "ArrowLeft": 37, "ArrowDown": 40, "ArrowUp": 38, "Home": 36, "End": 35}
        for kind in ("keyDown", "keyUp"):
            self.call("Input.dispatchKeyEvent", type=kind, key=key, code=key, windowsVirtualKeyCode=code or codes[key],
                      **({"text": "\r"} if key == "Enter" and kind == "keyDown" else {}))

    def screenshot(self, path, whole=True):
        shot = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=whole)
        with open(path, "wb") as file:
            file.write(base64.b64decode(shot["data"]))

    def accessible(self):
        """Returns [(role, name)] of the elements that a screen reader sees, as far as possible in reading order."""
        nodes = self.call("Accessibility.getFullAXTree")["nodes"]
        return [(node.get("role", {}).get("value"), node.get("name", {}).get("value", "")) for node in nodes
                if not node.get("ignored")]

    def measures(self):
        return {each["name"]: each["value"] for each in self.call("Performance.getMetrics")["metrics"]}
