"""Take a picture of HTML files or addresses, side by side, for docs/images: reports, comparisons, pages of the site.

    python tools/photograph.py docs/images/report.png runs/tracks/report.html --width 1180 --height 1800
    python tools/photograph.py docs/images/site.png docs/_build/html/index.html docs/_build/html/tutorials/tracking.html

Needs Chromium and playwright.
"""

from __future__ import annotations

import argparse
import io
import shutil
from pathlib import Path

from PIL import Image
from playwright.sync_api import Page, sync_playwright


def main() -> None:
    """Open the pages, wait until their plots are drawn, and store what the window shows."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("target", type=Path)
    parser.add_argument("pages", nargs="+")
    parser.add_argument("--width", type=int, default=800)
    parser.add_argument("--height", type=int, default=1000)
    parser.add_argument("--scheme", choices=("light", "dark"), default="light")
    parser.add_argument("--seconds", type=float, default=10.0, help="time for plots to be drawn")
    options = parser.parse_args()
    with sync_playwright() as playwright:
        arguments = ["--no-sandbox", "--disable-gpu", "--hide-scrollbars"]
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=arguments)
        window = browser.new_page(color_scheme=options.scheme)
        window.set_viewport_size({"width": options.width, "height": options.height})
        pictures = [_picture(window, page, options.seconds) for page in options.pages]
        browser.close()
    joined = Image.new("RGB", (sum(each.width for each in pictures), options.height))
    for number, picture in enumerate(pictures):
        joined.paste(picture, (number * options.width, 0))
    joined.thumbnail((1800, 1800), Image.Resampling.LANCZOS)
    joined.quantize(256).save(options.target, optimize=True)


def _picture(window: Page, page: str, seconds: float) -> Image.Image:
    window.goto(page if "://" in page else Path(page).absolute().as_uri(), timeout=200_000)
    window.wait_for_timeout(1000 * seconds)
    return Image.open(io.BytesIO(window.screenshot(timeout=200_000))).convert("RGB")


if __name__ == "__main__":
    main()
