"""Debian's Chromium without a window, driven by playwright."""

from __future__ import annotations

import shutil
from importlib.util import find_spec
from pathlib import Path
from typing import Any


def found() -> str | None:
    """The program, if it and playwright are installed."""
    names = ("chromium", "chromium-browser", "google-chrome")
    return next((path for path in map(shutil.which, names) if path), None) if find_spec("playwright") else None


class Chromium:
    """One page. `errors` collects what its console and its scripts complain of."""

    def __init__(self) -> None:
        from playwright.sync_api import sync_playwright

        self._playwright = sync_playwright().start()
        self._browser = self._playwright.chromium.launch(executable_path=found(), args=["--no-sandbox"])
        self.page = self._browser.new_page()
        self._devtools = self.page.context.new_cdp_session(self.page)
        self.errors: list[str] = []
        self.page.on("pageerror", lambda error: self.errors.append(str(error)))
        self.page.on("console", self._heard)

    def _heard(self, message: Any) -> None:
        if message.type in ("error", "warning", "assert"):
            self.errors.append(message.text)

    def __enter__(self) -> Chromium:
        return self

    def __exit__(self, *error: object) -> None:
        self._browser.close()
        self._playwright.stop()

    def open(self, path: Path) -> None:
        self.page.goto(path.resolve().as_uri())

    def run(self, script: str) -> Any:
        """The value of an expression, awaited if it is a promise."""
        return self.page.evaluate(script)

    def settle(self) -> None:
        """Until what a click or a slider asked for is drawn."""
        self.run("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(() => done(1))))")

    def click(self, selector: str) -> None:
        self.page.locator(selector).first.click()
        self.settle()

    def hover(self, selector: str, across: float, down: float) -> None:
        """The pointer at these shares of an element's width and height."""
        element = self.page.locator(selector).first
        element.scroll_into_view_if_needed()
        box = element.bounding_box()
        self.page.mouse.move(box["x"] + across * box["width"], box["y"] + down * box["height"])
        self.settle()

    def press(self, key: str, times: int = 1) -> None:
        for _ in range(times):
            self.page.keyboard.press(key)
        self.settle()

    def slide(self, selector: str, value: float) -> None:
        """Move a range input."""
        self.page.locator(selector).fill(str(value))
        self.settle()

    def pick(self, selector: str, value: str) -> None:
        """An option of a select."""
        self.page.locator(selector).select_option(value)
        self.settle()

    def look(self, *, width: int = 1100, height: int = 900, dark: bool = False, media: str = "screen") -> None:
        """The size of the window, and whether the reader likes it dark or on paper."""
        size = {"width": width, "height": height}
        self.page.set_viewport_size(size)
        # a phone takes the width that the page asks for, which playwright decides only for a new window
        phone = {**size, "deviceScaleFactor": 1, "mobile": width < 500}
        self._devtools.send("Emulation.setDeviceMetricsOverride", phone)
        self.page.emulate_media(media=media, color_scheme="dark" if dark else "light")
        self.settle()

    def screenshot(self, **options: Any) -> bytes:
        return self.page.screenshot(full_page=True, **options)

    def pdf(self, path: Path) -> Path:
        self.page.pdf(path=path)
        return path
