"""A real browser for tests: headless Chromium, driven over its DevTools protocol."""

import base64
import json
import os
import shutil
import subprocess
import time
from contextlib import contextmanager

from websockets.sync.client import connect

INSTALL = "apt-get install chromium (or put chromium, chromium-browser or google-chrome on the PATH)"


def find_chromium():
    """Return the browser's path, or None."""
    names = ("chromium", "chromium-browser", "google-chrome")
    return next((path for name in names if (path := shutil.which(name))), None)


def required():
    """Return whether tests must not do without the browser, as in continuous integration."""
    return os.environ.get("FEDGBO_CI") == "1"


class Page:
    """One tab. Events that a healthy offline page never causes are kept: `requests`, `errors`."""

    def __init__(self, socket):
        self.socket, self.number, self.events = socket, 0, []
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.call(f"{domain}.enable")

    def call(self, method, **params):
        self.number += 1
        self.socket.send(json.dumps({"id": self.number, "method": method, "params": params}))
        while True:
            message = json.loads(self.socket.recv(timeout=30))
            if message.get("id") == self.number:
                assert "error" not in message, message
                return message["result"]
            self.events.append(message)

    def evaluate(self, expression):
        """Return the value of a JavaScript expression, awaited if it is a promise."""
        result = self.call("Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in result, result["exceptionDetails"]
        return result["result"].get("value")

    def wait_for(self, expression, seconds=20):
        end = time.monotonic() + seconds
        while not (value := self.evaluate(f"!!({expression})")):
            assert time.monotonic() < end, f"waited too long for {expression}; {self.errors()}"
            time.sleep(0.02)
        return value

    def open(self, path):
        self.events.clear()
        self.call("Page.navigate", url=path.as_uri())
        self.wait_for("document.documentElement?.dataset.drawn === 'yes'")

    def size(self, width, height, mobile=False):
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=mobile)

    def media(self, media="", scheme="light"):
        feature = {"name": "prefers-color-scheme", "value": scheme}
        self.call("Emulation.setEmulatedMedia", media=media, features=[feature])

    def pointer(self, kind, x, y, **more):
        self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, **more)

    def click(self, selector):
        place = self.evaluate(
            f"(() => {{ const e = document.querySelector({json.dumps(selector)});"
            "e.scrollIntoView({block: 'center'}); const b = e.getBoundingClientRect();"
            "return [b.x + b.width / 2, b.y + b.height / 2]; })()"
        )
        for kind in ("mousePressed", "mouseReleased"):
            self.pointer(kind, *place, button="left", clickCount=1)

    def key(self, key, code):
        for kind in ("keyDown", "keyUp"):
            text = {"text": key} if kind == "keyDown" and len(key) == 1 else {}
            self.call("Input.dispatchKeyEvent", type=kind, key=key, code=key, windowsVirtualKeyCode=code, **text)

    def screenshot(self, path, whole=True):
        data = self.call("Page.captureScreenshot", captureBeyondViewport=whole)["data"]
        path.write_bytes(base64.b64decode(data))

    def pdf(self, path):
        path.write_bytes(base64.b64decode(self.call("Page.printToPDF", printBackground=False)["data"]))

    def requests(self):
        """Return the addresses that were asked for, but for the page itself and data inside it."""
        self.evaluate("1")
        sent = [e["params"]["request"]["url"] for e in self.events if e["method"] == "Network.requestWillBeSent"]
        return [url for url in sent if not url.startswith(("file:", "data:"))]

    def errors(self):
        """Return what the console has: messages, exceptions, violations of the security policy."""
        kinds = ("Runtime.consoleAPICalled", "Runtime.exceptionThrown", "Log.entryAdded")
        return [e["params"] for e in self.events if e["method"] in kinds]


@contextmanager
def browser(folder):
    """Yield a page in a browser with a fresh profile; end the browser afterwards."""
    chromium = find_chromium()
    assert chromium, f"these tests need a browser: {INSTALL}"
    profile = folder / "profile"
    arguments = ["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars"]
    arguments += ["--disable-background-networking", "--no-first-run", "--remote-debugging-port=0"]
    with (folder / "chromium.log").open("wb") as log:
        process = subprocess.Popen(
            [chromium, *arguments, f"--user-data-dir={profile}", "about:blank"], stdout=log, stderr=log
        )
    try:
        port_file, end = profile / "DevToolsActivePort", time.monotonic() + 60
        while not (port_file.exists() and port_file.read_text().count("\n") >= 1):
            assert process.poll() is None, (folder / "chromium.log").read_text()
            assert time.monotonic() < end, "Chromium did not start"
            time.sleep(0.05)
        port, path = port_file.read_text().split("\n")[:2]
        with connect(f"ws://127.0.0.1:{port}{path}", max_size=None) as root:
            root.send(json.dumps({"id": 1, "method": "Target.createTarget", "params": {"url": "about:blank"}}))
            while (message := json.loads(root.recv(timeout=30))).get("id") != 1:
                pass
            target = message["result"]["targetId"]
            with connect(f"ws://127.0.0.1:{port}/devtools/page/{target}", max_size=None) as socket:
                yield Page(socket)
    finally:
        process.terminate()
        process.wait(timeout=30)
