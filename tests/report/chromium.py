"""A headless Chromium for tests, driven over the DevTools protocol with what is installed anyway."""

import asyncio
import base64
import contextlib
import itertools
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Self

import aiohttp

PROGRAMS = ("chromium", "chromium-browser", "google-chrome")
PATIENCE = 120.0  # seconds that a busy machine may take for one thing
FLAGS = (
    "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-extensions", "--disable-sync",
    "--hide-scrollbars", "--mute-audio", "--remote-debugging-port=0",
)  # fmt: skip


def find() -> str | None:
    """Return the path of an installed browser."""
    return next((path for name in PROGRAMS if (path := shutil.which(name))), None)


class Tab:
    """One page in a browser: every method returns when the browser has answered."""

    def __init__(self, browser: "Browser", session: str) -> None:
        self._browser, self._session = browser, session
        self.complaints: list[str] = []
        """Errors and warnings of the console, exceptions, and addresses outside the page that were asked for."""
        self.loaded = 0
        browser.listeners[session] = self._hear
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Send a command and wait for its result."""
        return self._browser.call(method, parameters, self._session)

    def _hear(self, event: dict[str, Any]) -> None:
        given = event["params"]
        if event["method"] == "Page.loadEventFired":
            self.loaded += 1
        elif event["method"] == "Runtime.exceptionThrown":
            self.complaints.append(f"exception: {given['exceptionDetails']}")
        elif event["method"] == "Runtime.consoleAPICalled" and given["type"] in ("error", "warning", "assert"):
            self.complaints.append(f"console: {given['args']}")
        elif event["method"] == "Log.entryAdded" and given["entry"]["level"] in ("error", "warning"):
            self.complaints.append(f"log: {given['entry']}")
        elif event["method"] == "Network.requestWillBeSent":
            address = given["request"]["url"]
            if not address.startswith(("file:", "data:", "blob:", "about:")):
                self.complaints.append(f"network: {address}")

    def open(self, path: Path) -> None:
        """Load a file and wait until all of it is there."""
        before = self.loaded
        self.call("Page.navigate", url=path.resolve().as_uri())
        self._browser.hear_until(lambda: self.loaded > before, f"{path} to load")

    def evaluate(self, expression: str) -> Any:
        """Return the value of a JavaScript expression."""
        answer = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def wait(self, expression: str) -> Any:
        """Wait until a JavaScript expression is true, and return its value."""
        end = time.monotonic() + PATIENCE
        while not (value := self.evaluate(expression)):
            assert time.monotonic() < end, f"still not true: {expression}"
            time.sleep(0.02)
        return value

    def view(self, width: int, height: int = 800, dark: bool = False, media: str = "", mobile: bool = False) -> None:
        """Give the page a size in CSS pixels, a colour scheme and a medium; on a phone, also fingers."""
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=mobile)
        self.call("Emulation.setTouchEmulationEnabled", enabled=mobile)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", media=media, features=[scheme])

    def _middle(self, selector: str) -> dict[str, float]:
        """Scroll an element into view and return the coordinates of its middle."""
        place: dict[str, float] = self.evaluate(
            f"(() => {{ const e = document.querySelector({selector!r}); e.scrollIntoView({{block: 'center'}});"
            "const r = e.getBoundingClientRect(); return {x: r.x + r.width / 2, y: r.y + r.height / 2}; })()"
        )
        return place

    def hover(self, selector: str) -> None:
        """Move the mouse onto the middle of an element."""
        self.call("Input.dispatchMouseEvent", type="mouseMoved", **self._middle(selector))

    def click(self, selector: str) -> None:
        """Press and release the left button on the middle of an element."""
        place = self._middle(selector)
        for kind in ("mouseMoved", "mousePressed", "mouseReleased"):
            self.call("Input.dispatchMouseEvent", type=kind, button="left", clickCount=1, **place)

    def tap(self, selector: str) -> None:
        """Touch the middle of an element."""
        place = self._middle(selector)
        self.call("Input.dispatchTouchEvent", type="touchStart", touchPoints=[place])
        self.call("Input.dispatchTouchEvent", type="touchEnd", touchPoints=[])

    def press(self, key: str) -> None:
        """Press a key, named as in KeyboardEvent.key, on what has the focus."""
        codes = {"Enter": 13, " ": 32, "ArrowLeft": 37, "ArrowUp": 38, "ArrowRight": 39, "ArrowDown": 40, "Tab": 9}
        text = {"Enter": "\r", " ": " "}.get(key, "")
        common = {"key": key, "code": "Space" if key == " " else key, "windowsVirtualKeyCode": codes[key]}
        self.call("Input.dispatchKeyEvent", type="keyDown", text=text, **common)
        self.call("Input.dispatchKeyEvent", type="keyUp", **common)

    def screenshot(self, whole: bool = False) -> bytes:
        """Return a PNG of what is in view, or of the whole page."""
        answer = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=whole)
        return base64.b64decode(answer["data"])


class Browser:
    """A process with a profile of its own, and the connection to it."""

    def __init__(self, program: str, profile: Path) -> None:
        profile.mkdir(parents=True)
        self.listeners: dict[str, Any] = {}
        self._ids = itertools.count(1)
        self._answers: dict[int, dict[str, Any]] = {}
        self._errors = (profile / "stderr").open("wb")
        command = [program, *FLAGS, f"--user-data-dir={profile}", "about:blank"]
        self._process = subprocess.Popen(command, stdout=self._errors, stderr=self._errors)
        self._loop = asyncio.new_event_loop()
        try:
            address = self._address(profile)
            self._http, self._socket = self._loop.run_until_complete(self._connect(address))
        except BaseException:
            self._end()
            raise

    def _address(self, profile: Path) -> str:
        """Wait for the file in which the browser says where it listens."""
        file, end = profile / "DevToolsActivePort", time.monotonic() + PATIENCE
        while True:
            lines = file.read_text().splitlines() if file.exists() else []
            if len(lines) == 2:
                return f"ws://127.0.0.1:{lines[0]}{lines[1]}"
            said = (profile / "stderr").read_text(errors="replace")[-2000:]
            assert self._process.poll() is None, f"the browser ended: {said}"
            assert time.monotonic() < end, f"the browser does not listen: {said}"
            time.sleep(0.05)

    @staticmethod
    async def _connect(address: str) -> tuple[aiohttp.ClientSession, aiohttp.ClientWebSocketResponse]:
        session = aiohttp.ClientSession()
        return session, await session.ws_connect(address, max_msg_size=0)

    async def _hear(self, patience: float) -> None:
        """Take one message: an answer to a command, or an event for a tab."""
        message = await self._socket.receive_json(timeout=patience)
        if "id" in message:
            self._answers[message["id"]] = message
        elif message.get("sessionId") in self.listeners:
            self.listeners[message["sessionId"]](message)

    def call(self, method: str, parameters: dict[str, Any], session: str | None = None) -> dict[str, Any]:
        """Send a command and wait for its answer; events that come before it are heard."""
        number = next(self._ids)
        message = {"id": number, "method": method, "params": parameters}
        self._loop.run_until_complete(self._socket.send_json(message | ({"sessionId": session} if session else {})))
        self.hear_until(lambda: number in self._answers, method)
        answer = self._answers.pop(number)
        assert "error" not in answer, (method, answer["error"])
        result: dict[str, Any] = answer["result"]
        return result

    def hear_until(self, condition: Any, what: str) -> None:
        """Hear messages until a condition holds."""
        end = time.monotonic() + PATIENCE
        while not condition():
            left = end - time.monotonic()
            assert left > 0, f"waited for {what} in vain"
            with contextlib.suppress(TimeoutError):
                self._loop.run_until_complete(self._hear(left))

    def tab(self) -> Tab:
        """Open an empty page."""
        target = self.call("Target.createTarget", {"url": "about:blank"})["targetId"]
        return Tab(self, self.call("Target.attachToTarget", {"targetId": target, "flatten": True})["sessionId"])

    def close(self) -> None:
        """End the browser, politely at first."""
        with contextlib.suppress(Exception):
            self._loop.run_until_complete(self._socket.send_json({"id": 0, "method": "Browser.close", "params": {}}))
            self._process.wait(10)
        self._loop.run_until_complete(self._socket.close())
        self._loop.run_until_complete(self._http.close())
        self._end()

    def _end(self) -> None:
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait()
        self._loop.close()
        self._errors.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


@contextlib.contextmanager
def browser(folder: Path) -> Iterator[Browser]:
    """Run an installed browser with its profile in `folder`."""
    program = find()
    assert program
    with Browser(program, folder / "profile") as running:
        yield running
