"""Take a picture of an HTML file or address, for docs/images: reports, comparisons, pages of the site.

    python tools/photograph.py runs/first/report.html docs/images/report.png --height 1400

Needs Chromium and playwright.
"""

from __future__ import annotations

import argparse
import shutil
from pathlib import Path

from PIL import Image
from playwright.sync_api import ViewportSize, sync_playwright


def main() -> None:
    """Open the page, wait until its plots are drawn, and store what the window shows."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("page")
    parser.add_argument("target", type=Path)
    parser.add_argument("--width", type=int, default=800)
    parser.add_argument("--height", type=int, default=1000)
    parser.add_argument("--scale", type=float, default=1.0, help="pixels of the picture per pixel of the page")
    parser.add_argument("--scheme", choices=("light", "dark"), default="light")
    parser.add_argument("--seconds", type=float, default=3.0, help="time for plots to be drawn")
    options = parser.parse_args()
    address = options.page if "://" in options.page else Path(options.page).absolute().as_uri()
    with sync_playwright() as playwright:
        arguments = ["--no-sandbox", "--disable-gpu", "--hide-scrollbars"]
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=arguments)
        window: ViewportSize = {"width": options.width, "height": options.height}
        page = browser.new_page(viewport=window, device_scale_factor=options.scale, color_scheme=options.scheme)
        page.goto(address, timeout=200_000)
        page.wait_for_timeout(1000 * options.seconds)
        page.screenshot(path=str(options.target), timeout=200_000)
        browser.close()
    Image.open(options.target).convert("RGB").quantize(256).save(options.target, optimize=True)


if __name__ == "__main__":
    main()
