"""A real Chromium, driven through its debugging pipe: pages as people meet them, with keys, a mouse and a lost connection.

No driver and no port: two pipes carry JSON messages that end in a zero byte (https://chromedevtools.github.io/devtools-protocol/).
"""

from __future__ import annotations

import base64
import json
import os
import select
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

PROGRAMS = ("chromium", "chromium-browser", "google-chrome")
#: A cold start on a busy machine takes several seconds.
ANSWER_S = 60.0
_OPTIONS = (
    "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run", "--disable-extensions",
    "--disable-background-networking", "--disable-component-update", "--disable-sync", "--mute-audio",
    "--host-resolver-rules=MAP * ~NOTFOUND , EXCLUDE localhost", "--remote-debugging-pipe",
)  # fmt: skip


class Browser:
    """One browser with one page. Every method returns once the browser has answered; `wait_for` waits for the page."""

    def __init__(self, to_browser: int, from_browser: int) -> None:
        self._out, self._in = to_browser, from_browser
        self._rest = b""
        self._number = 0
        target = self._send("Target.createTarget", {"url": "about:blank"})["targetId"]
        self._session = self._send("Target.attachToTarget", {"targetId": target, "flatten": True})["sessionId"]
        self.send("Network.enable")
        self.send("Page.enable")

    def _send(self, method: str, params: dict[str, Any], session: str = "") -> dict[str, Any]:
        self._number += 1
        message = {"id": self._number, "method": method, "params": params} | ({"sessionId": session} if session else {})
        os.write(self._out, json.dumps(message).encode() + b"\0")
        until = time.monotonic() + ANSWER_S
        while time.monotonic() < until:
            answer = self._next(until - time.monotonic())
            if answer is not None and answer.get("id") == self._number:
                assert "error" not in answer, (method, answer["error"])
                result: dict[str, Any] = answer["result"]
                return result
        raise AssertionError(f"the browser did not answer {method} within {ANSWER_S:g} s")

    def _next(self, wait_s: float) -> dict[str, Any] | None:
        while b"\0" not in self._rest:
            if not select.select([self._in], [], [], max(0.0, wait_s))[0]:
                return None
            read = os.read(self._in, 1 << 16)
            assert read, "the browser has ended"
            self._rest += read
        message, _, self._rest = self._rest.partition(b"\0")
        found: dict[str, Any] = json.loads(message)
        return found

    def send(self, method: str, **params: Any) -> dict[str, Any]:
        """One command to the page."""
        return self._send(method, params, self._session)

    def js(self, expression: str) -> Any:
        """What the expression is in the page, as JSON."""
        found = self.send("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in found, found
        return found["result"].get("value")

    def wait_for(self, expression: str, *, within_s: float = 60.0) -> None:
        """Until the expression is true in the page; a page that is being loaded counts as not yet."""
        until = time.monotonic() + within_s
        while time.monotonic() < until:
            try:
                if self.js(f"Boolean({expression})"):
                    return
            except AssertionError:
                pass  # between two documents
            time.sleep(0.1)
        raise AssertionError(f"not within {within_s:g} s: {expression}; the page says {self.text()[:2000]}")

    def text(self) -> str:
        """What the page says."""
        found: str = self.js("document.body.innerText")
        return found

    def sign_in(self, url: str, session: str) -> None:
        """The cookie of a session that the server knows."""
        self.send("Network.setCookie", name="sessionid", value=session, url=url)

    def open(self, url: str) -> None:
        """The page at the address, loaded."""
        self.js("window.left = true")
        self.send("Page.navigate", url=url)
        self.loaded()

    def loaded(self) -> None:
        """Until another document than that of the last `open` or `loaded` is there, with its scripts."""
        self.wait_for("!window.left && document.readyState === 'complete'")
        self.js("window.left = true")

    def click(self, selector: str) -> None:
        """A press of the mouse in the middle of the element, wherever that lies now."""
        self.js(f"document.querySelector({json.dumps(selector)}).scrollIntoView({{block: 'center'}})")
        box = self.js(f"document.querySelector({json.dumps(selector)}).getBoundingClientRect().toJSON()")
        self.press_at(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)

    def press_at(self, x: float, y: float) -> None:
        for kind in ("mousePressed", "mouseReleased"):
            self.send("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)

    def type(self, text: str) -> None:
        self.send("Input.insertText", text=text)

    def enter(self) -> None:
        """The Enter key in what has the focus."""
        key = {"key": "Enter", "code": "Enter", "windowsVirtualKeyCode": 13}
        self.send("Input.dispatchKeyEvent", type="keyDown", text="\r", **key)
        self.send("Input.dispatchKeyEvent", type="keyUp", **key)

    def block(self, *patterns: str) -> None:
        """No answer to these addresses any more; none given: all are answered again."""
        self.send("Network.setBlockedURLs", urls=list(patterns))

    def look(self, *, width: int = 1440, dark: bool = False) -> None:
        """The window's width in pixels, and whether the person likes it dark."""
        self.send("Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=False)
        feature = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.send("Emulation.setEmulatedMedia", features=[feature])

    def screenshot(self, path: Path) -> None:
        """The whole page, as a PNG."""
        size = self.send("Page.getLayoutMetrics")["cssContentSize"]
        clip = {**size, "scale": 1}
        found = self.send("Page.captureScreenshot", captureBeyondViewport=True, clip=clip)
        path.write_bytes(base64.b64decode(found["data"]))


@contextmanager
def chromium(profile: Path) -> Iterator[Browser]:
    """A browser with an empty profile in that folder, ended afterwards."""
    program = next(filter(None, map(shutil.which, PROGRAMS)))
    reads, to_browser = os.pipe()
    from_browser, writes = os.pipe()
    # the browser reads its descriptor 3 and writes 4, whatever numbers the pipes have here
    assert min(reads, writes) > 4
    begin = "import os, sys; os.dup2(int(sys.argv[1]), 3); os.dup2(int(sys.argv[2]), 4); os.execv(sys.argv[3], sys.argv[3:])"
    command = [sys.executable, "-c", begin, str(reads), str(writes), program, *_OPTIONS, f"--user-data-dir={profile}"]
    log = (profile.parent / f"{profile.name}.log").open("wb")
    process = subprocess.Popen(command, pass_fds=(reads, writes), stdout=log, stderr=log, start_new_session=True)
    os.close(reads)
    os.close(writes)
    try:
        yield Browser(to_browser, from_browser)
    finally:
        os.close(to_browser)  # the browser ends by itself when nobody drives it
        os.close(from_browser)
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        log.close()
