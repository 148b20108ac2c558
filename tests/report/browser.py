"""A headless Chromium through its driver's plain HTTP protocol: what a page logs, requests and looks like."""

from __future__ import annotations

import base64
import json
import os
import re
import shutil
import subprocess
import tempfile
import urllib.request
from pathlib import Path
from typing import Any

from filelock import FileLock

FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--hide-scrollbars",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-extensions",
    "--disable-default-apps",
    "--disable-dev-shm-usage",
)


def require_chromium() -> tuple[str, str]:
    """Return the paths of Chromium and its driver; install Debian's packages where we are root.

    Raises:
        RuntimeError: it is not there and cannot be installed.
    """
    # Several test processes may come here at once, and the package manager has one lock.
    with FileLock(Path(tempfile.gettempdir()) / "memaudit-chromium.lock"):
        return _require()


def _require() -> tuple[str, str]:
    found = _find()
    if found is None and os.geteuid() == 0 and shutil.which("apt-get"):
        environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
        for command in (
            ["apt-get", "update", "-qq"],
            ["apt-get", "install", "-y", "-qq", "--no-install-recommends", "chromium", "chromium-driver"],
        ):
            done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=540)
            if done.returncode != 0:
                raise RuntimeError(f"{' '.join(command)} failed: {done.stderr[-500:]}")
        found = _find()
    if found is None:
        raise RuntimeError(
            "no chromium and chromedriver; install Debian's packages chromium and chromium-driver"
        )
    return found


def _find() -> tuple[str, str] | None:
    browser = shutil.which("chromium") or shutil.which("google-chrome")
    driver = shutil.which("chromedriver")
    return (browser, driver) if browser and driver else None


class Browser:
    """One browser window; use it as a context manager."""

    def __init__(self, *, width: int, height: int, phone: bool = False) -> None:
        self.size = (width, height)
        self.phone = phone

    def __enter__(self) -> Browser:
        try:
            self._start()
        except BaseException:
            self.close()  # nothing may outlive a start that failed half-way
            raise
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _start(self) -> None:
        binary, driver = require_chromium()
        self._profile = tempfile.mkdtemp(prefix="memaudit-chromium-")
        # Port 0 lets the driver choose a free one, which it prints.
        self._process = subprocess.Popen(
            [driver, "--port=0"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if found := re.search(r"successfully on port (\d+)", line):
                self._base = f"http://127.0.0.1:{found.group(1)}"
                break
        else:
            raise RuntimeError("chromedriver did not start")
        options: dict[str, Any] = {
            "binary": binary,
            "args": [
                *FLAGS,
                f"--user-data-dir={self._profile}",
                f"--window-size={self.size[0]},{self.size[1]}",
            ],
        }
        if self.phone:
            metrics = {"width": self.size[0], "height": self.size[1], "pixelRatio": 2.0, "touch": True}
            options["mobileEmulation"] = {"deviceMetrics": metrics}
        wanted = {
            "browserName": "chrome",
            "goog:chromeOptions": options,
            "goog:loggingPrefs": {"browser": "ALL", "performance": "ALL"},
        }
        answer = self._call("POST", "/session", {"capabilities": {"alwaysMatch": wanted}})
        self._session = f"/session/{answer['sessionId']}"

    def close(self) -> None:
        """End the browser and its driver, and remove its profile."""
        if not hasattr(self, "_process"):
            return
        try:
            if hasattr(self, "_session"):
                self._call("DELETE", self._session)
        finally:
            self._process.terminate()
            self._process.wait(timeout=120)
            assert self._process.stdout is not None
            self._process.stdout.close()
            shutil.rmtree(self._profile, ignore_errors=True)

    def open(self, page: Path) -> None:
        """Load a local file; what the browser's own first page logged and loaded is put aside."""
        self._call("POST", f"{self._session}/url", {"url": "about:blank"})
        self.console()
        self.requests()
        self._call("POST", f"{self._session}/url", {"url": page.resolve().as_uri()})

    def run(self, script: str) -> Any:
        """Run JavaScript in the page and return its value."""
        return self._call("POST", f"{self._session}/execute/sync", {"script": script, "args": []})

    def console(self) -> list[dict[str, Any]]:
        """Return what the page logged, errors and refused loads among it."""
        found = self._call("POST", f"{self._session}/se/log", {"type": "browser"})
        return [dict(entry) for entry in found]

    def requests(self) -> list[str]:
        """Return the address of every request that the page made."""
        events = self._call("POST", f"{self._session}/se/log", {"type": "performance"})
        messages = [json.loads(event["message"])["message"] for event in events]
        return [
            message["params"]["request"]["url"]
            for message in messages
            if message["method"] == "Network.requestWillBeSent"
        ]

    def screenshot(self, path: Path) -> Path:
        """Write the window's picture."""
        path.write_bytes(base64.b64decode(self._call("GET", f"{self._session}/screenshot")))
        return path

    def pdf(self, path: Path) -> Path:
        """Write the page as it prints."""
        path.write_bytes(base64.b64decode(self._call("POST", f"{self._session}/print", {})))
        return path

    def _call(self, method: str, where: str, body: dict[str, Any] | None = None) -> Any:
        request = urllib.request.Request(
            self._base + where,
            method=method,
            data=None if body is None else json.dumps(body).encode(),
            headers={"Content-Type": "application/json"},
        )
        # The driver listens on this machine alone; a proxy from the environment must not come between.
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with opener.open(request, timeout=240) as response:
            return json.load(response)["value"]
