"""A headless Chromium that opens a page and records its console, its requests and its pictures."""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any

EXECUTABLE = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
# Chromium as root needs --no-sandbox; the pages are those of this project.
ARGUMENTS = ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--remote-debugging-pipe")
# Chromium reads commands from descriptor 3 and writes replies to descriptor 4.
START = """
import os, sys
os.dup2(int(sys.argv[1]), 3)
os.dup2(int(sys.argv[2]), 4)
os.execv(sys.argv[3], sys.argv[3:])
"""
DESKTOP, PHONE = (1200, 900), (390, 844)  # width and height of a window, in pixels
LIGHT, DARK = "light", "dark"


@dataclass
class VisitedPage:
    """What a browser recorded of a page.

    Attributes:
        errors: messages of its console, and exceptions of its scripts.
        requests: the URLs that it loaded.
        size: the width and height of its content, in pixels.
        background: the color behind its text.
    """

    errors: list[str] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)
    size: tuple[int, int] = (0, 0)
    background: str = ""


class Browser:
    """A headless Chromium, which it controls by the DevTools protocol over two pipes.

    Args:
        profile: a folder for its files.
    """

    def __init__(self, profile: Path):
        read_commands, write_commands = os.pipe()
        read_replies, write_replies = os.pipe()
        pipes = (read_commands, write_replies)
        command = [str(EXECUTABLE), *ARGUMENTS, f"--user-data-dir={profile}"]
        self._process = subprocess.Popen(
            [sys.executable, "-c", START, *map(str, pipes), *command],
            pass_fds=pipes,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(read_commands)
        os.close(write_replies)
        self._commands = os.fdopen(write_commands, "wb", buffering=0)
        self._replies = os.fdopen(read_replies, "rb")
        self._number = 0
        self._events: list[dict[str, Any]] = []

    def __enter__(self) -> Browser:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error:
            self._process.kill()
        else:
            with suppress(EOFError):  # it ends before it replies
                self._call("Browser.close")
        self._commands.close()
        self._process.wait(30)
        self._replies.close()

    def visit(self, page: Path, theme: str, window: Sequence[int], picture: Path) -> VisitedPage:
        """Open a page, write a picture of all of it, and return what was recorded."""
        target = self._call("Target.createTarget", url="about:blank")["targetId"]
        session = self._call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self._call(f"{domain}.enable", session)
        width, height = window
        media = [{"name": "prefers-color-scheme", "value": theme}]
        self._call("Emulation.setEmulatedMedia", session, features=media)
        self._call(
            "Emulation.setDeviceMetricsOverride", session,
            width=width, height=height, deviceScaleFactor=1, mobile=window is PHONE,
        )  # fmt: skip
        self._events.clear()
        self._call("Page.navigate", session, url=page.resolve().as_uri())
        self._wait_for("Page.loadEventFired")
        visited = VisitedPage(background=self._evaluate(session, "getComputedStyle(document.body).backgroundColor"))
        visited.size = tuple(
            self._evaluate(session, f"document.documentElement.scroll{side}") for side in ("Width", "Height")
        )
        shot = self._call("Page.captureScreenshot", session, format="png", captureBeyondViewport=True, clip={
            "x": 0, "y": 0, "width": width, "height": visited.size[1], "scale": 1,
        })  # fmt: skip
        picture.write_bytes(base64.b64decode(shot["data"]))
        for event in self._events:
            self._record(event["method"], event["params"], visited)
        self._call("Target.closeTarget", targetId=target)
        return visited

    def _record(self, method: str, parameters: dict[str, Any], visited: VisitedPage) -> None:
        if method in ("Runtime.exceptionThrown", "Runtime.consoleAPICalled", "Log.entryAdded"):
            visited.errors.append(json.dumps(parameters))
        if method == "Network.requestWillBeSent":
            visited.requests.append(parameters["request"]["url"])

    def _evaluate(self, session: str, expression: str) -> Any:
        return self._call("Runtime.evaluate", session, expression=expression)["result"]["value"]

    def _call(self, method: str, session: str | None = None, **parameters: Any) -> dict[str, Any]:
        """Call a method of the protocol, and return its result."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters}
        self._commands.write(json.dumps(message | ({"sessionId": session} if session else {})).encode() + b"\0")
        while (reply := self._receive()).get("id") != self._number:
            self._events.append(reply)
        assert "error" not in reply, f"{method}: {reply['error']}"
        return reply["result"]

    def _wait_for(self, method: str) -> None:
        while not any(event["method"] == method for event in self._events):
            self._events.append(self._receive())

    def _receive(self) -> dict[str, Any]:
        message = bytearray()
        while (byte := self._replies.read(1)) != b"\0":
            if not byte:
                raise EOFError("Chromium has ended")
            message += byte
        return json.loads(message)
