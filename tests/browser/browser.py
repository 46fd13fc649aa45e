"""Debian's Chromium, driven by Selenium, without a window; and what a page did in it."""

import base64
import os
import shutil
import struct
import sys
import tempfile
import time
import zlib

SKIPPED = 77
WIDE, NARROW = (1280, 900), (360, 740)
DEADLINE_S = 90  # a loaded machine of 2 cores takes over 30 s for axe-core
# A script's beginning: f is the element of the first argument's id, and what it lies in is open.
OPENED = ("const f = document.getElementById(arguments[0]);"
          "for (let e = f.parentElement; e; e = e.parentElement) if (e.matches('details')) e.open = true;")


def skip_where_it_is_missing():
    """Ends this test with the reason where there is nothing to drive, or nothing to drive it with."""
    missing = [name for name in ("chromium", "chromedriver") if not shutil.which(name)]
    if missing:
        print(f"skipped: {' and '.join(missing)} not found; ./lockstep setup --browser installs them")
        sys.exit(SKIPPED)
    try:
        import selenium_axe_python  # noqa: F401
    except ImportError as error:
        print(f"skipped: {error.name} is not in this Python's environment; ./lockstep setup installs it")
        sys.exit(SKIPPED)


class Browser:
    def __init__(self, size=WIDE, dark=False):
        from selenium import webdriver
        options = webdriver.ChromeOptions()
        options.binary_location = shutil.which("chromium")
        for argument in ("--headless=new", "--disable-dev-shm-usage", "--disable-gpu", "--hide-scrollbars", "--lang=en"):
            options.add_argument(argument)
        if os.getuid() == 0:
            options.add_argument("--no-sandbox")  # Chromium refuses root with one
        # Its profile, and whatever else it leaves, goes with this folder.
        self.folder = tempfile.mkdtemp(prefix="lockstep-browser-")
        options.add_argument(f"--user-data-dir={self.folder}/profile")
        service = webdriver.ChromeService(shutil.which("chromedriver"),
                                          env={**os.environ, "TMPDIR": self.folder, "HOME": self.folder})
        options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
        self.driver = webdriver.Chrome(options=options, service=service)
        self.driver.set_page_load_timeout(DEADLINE_S)
        self.driver.set_script_timeout(DEADLINE_S)
        self.resize(size)
        self.media({"prefers-color-scheme": "dark" if dark else "light"})

    def close(self):
        self.driver.quit()
        until = time.monotonic() + DEADLINE_S
        while os.path.exists(self.folder):  # the browser's last processes may still write
            shutil.rmtree(self.folder, ignore_errors=time.monotonic() < until)

    def resize(self, size):
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride",
                                    {"width": size[0], "height": size[1], "deviceScaleFactor": 1, "mobile": False})

    def media(self, features, kind=""):
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {
            "media": kind, "features": [{"name": name, "value": value} for name, value in features.items()]})

    def open(self, file, place=""):
        self.driver.get("about:blank")  # else another place of the same page would not be loaded again
        self.driver.get(file.resolve().as_uri() + place)

    def js(self, script, *arguments):
        return self.driver.execute_script(script, *arguments)

    def wait(self, script, *arguments, what="that"):
        """Until a script's value is true; returns it."""
        until = time.monotonic() + DEADLINE_S
        while time.monotonic() < until:
            value = self.js(script, *arguments)
            if value:
                return value
            time.sleep(0.05)
        raise AssertionError(f"not within {DEADLINE_S} s: {what}")

    def draw(self, figure):
        """Brings a chart into view, opening what it lies in, and waits until it is drawn."""
        self.js(OPENED + "f.scrollIntoView();", figure)
        self.wait("return document.getElementById(arguments[0]).dataset.drawn", figure, what=f"{figure} is drawn")

    def complaints(self):
        return [entry["message"] for entry in self.driver.get_log("browser")]

    def axe(self):
        """axe-core's violations, in a line each."""
        from selenium_axe_python import Axe
        axe = Axe(self.driver)
        axe.inject()
        return [f"{rule['id']}: {rule['help']}: {[node['html'][:160] for node in rule['nodes'][:3]]}"
                for rule in axe.run()["violations"]]

    def screenshot(self, file, clip):
        """Of a part of the page, also of what is below the window."""
        file.write_bytes(self.png(clip))

    def png(self, clip):
        picture = self.driver.execute_cdp_cmd("Page.captureScreenshot", {
            "format": "png", "clip": clip, "captureBeyondViewport": True})
        return base64.b64decode(picture["data"])

    def colour(self, x, y):
        """Of one pixel of the page, as #rrggbb."""
        png, at, packed = self.png({"x": x, "y": y, "width": 1, "height": 1, "scale": 1}), 8, b""
        while at < len(png):
            length, kind = struct.unpack_from(">I4s", png, at)
            packed += png[at + 8:at + 8 + length] if kind == b"IDAT" else b""
            at += 12 + length
        return f"#{zlib.decompress(packed)[1:4].hex()}"  # behind the line's filter, which changes no first pixel
