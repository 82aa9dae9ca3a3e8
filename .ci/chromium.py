"""Chromium over its DevTools pipe, for the tests of pages."""

import base64
import json
import os
import shutil
import subprocess
import sys
import tempfile


class Browser:
    """Chromium's DevTools protocol over two pipes: JSON messages, each terminated by a zero byte."""

    def __init__(self, chromium):
        self.profile = tempfile.mkdtemp()
        (their_in, our_out), (our_in, their_out) = os.pipe(), os.pipe()
        wiring = f"exec 3<&{their_in} 4>&{their_out}; exec \"$@\""
        flags = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run", "--remote-debugging-pipe"]
        command = ["bash", "-c", wiring, "bash", chromium, *flags, f"--user-data-dir={self.profile}", "about:blank"]
        self.process = subprocess.Popen(command, pass_fds=(their_in, their_out), stderr=subprocess.DEVNULL)
        os.close(their_in), os.close(their_out)
        self.out, self.incoming = os.fdopen(our_out, "wb", 0), os.fdopen(our_in, "rb")
        self.buffer, self.number, self.session, self.events = b"", 0, None, []

    def read(self):
        while b"\0" not in self.buffer:
            part = os.read(self.incoming.fileno(), 1 << 16)
            if not part:
                sys.exit("chromium ended early")
            self.buffer += part
        text, self.buffer = self.buffer.split(b"\0", 1)
        return json.loads(text)

    def call(self, method, **parameters):
        self.number += 1
        message = {"id": self.number, "method": method, "params": parameters}
        if self.session:
            message["sessionId"] = self.session
        self.out.write(json.dumps(message).encode() + b"\0")
        while True:
            answer = self.read()
            if answer.get("id") == self.number:
                if "error" in answer:
                    sys.exit(f"{method}: {answer['error']}")
                return answer["result"]
            self.events.append(answer)

    def wait(self, method):
        while not any(event.get("method") == method for event in self.events):
            self.events.append(self.read())

    def value(self, expression):
        """The value of a JavaScript expression."""
        answer = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in answer:
            sys.exit(f"{expression}: {answer['exceptionDetails']}")
        return answer["result"].get("value")

    def open_tab(self):
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self.session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def navigate(self, url):
        self.events = [event for event in self.events if event.get("method") != "Page.loadEventFired"]
        self.call("Page.navigate", url=url)
        self.wait("Page.loadEventFired")

    def close(self):
        self.process.terminate()
        self.process.wait()
        shutil.rmtree(self.profile, ignore_errors=True)


def complaints(events, allowed=("file:", "data:")):
    """Errors, warnings and forbidden requests."""
    for event in events:
        method, about = event.get("method"), event.get("params", {})
        if method == "Runtime.exceptionThrown":
            yield about["exceptionDetails"]["text"]
        elif method == "Runtime.consoleAPICalled" and about["type"] in ("error", "warning", "assert"):
            yield f"console: {about['args']}"
        elif method == "Log.entryAdded" and about["entry"]["level"] in ("error", "warning"):
            yield f"log: {about['entry']['text']}"
        elif method == "Network.requestWillBeSent" and not about["request"]["url"].startswith(tuple(allowed)):
            yield f"request: {about['request']['url']}"


def check(what, found, expected):
    if found != expected:
        sys.exit(f"{what}: the page says {found!r}, it should be {expected!r}")
    print(f"ok {what}: {found}")


def choose(browser, control, value, event="change"):
    browser.value(f"(() => {{ const c = document.getElementById('{control}'); c.value = {json.dumps(value)};"
                  f" c.dispatchEvent(new Event('{event}')); }})()")


def picture(browser, folder, name, width, height, mobile=False, whole=False):
    if folder is None:
        return
    browser.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=mobile)
    # Resets the sticky top bar, which would otherwise appear at the scroll position.
    browser.value("scrollTo(0, 0)")
    shot = browser.call("Page.captureScreenshot", captureBeyondViewport=whole)
    (folder / f"{name}.png").write_bytes(base64.b64decode(shot["data"]))
