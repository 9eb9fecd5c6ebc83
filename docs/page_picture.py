"""Make docs/page.png: a page of `python sample.py report=look.html` in a headless Chromium, with a character pointed at.

python docs/page_picture.py look.html        needs requirements-browser.txt, and chromium on the PATH
"""

import shutil
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from configs.command_line import run_script
from configs.schema import UserError

POINTED_AT, LAYER, HEAD = 300, 2, 1  # or the last, where there are not so many


def main(arguments: list[str]) -> None:
    if len(arguments) != 1 or not Path(arguments[0]).is_file():
        raise UserError("name a page that python sample.py report=look.html has made")
    chromium = shutil.which("chromium")
    if chromium is None:
        raise UserError("there is no chromium on the PATH: on Debian, apt-get install chromium")
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        raise UserError("playwright is missing: pip install -r requirements-browser.txt") from None
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=chromium, args=["--no-sandbox", "--disable-gpu"])
        tab = browser.new_page(viewport={"width": 1200, "height": 720})
        tab.goto(Path(arguments[0]).absolute().as_uri())
        if tab.evaluate("data.layers"):
            tab.select_option("#layer", str(min(LAYER, tab.evaluate("data.layers"))))
            tab.select_option("#head", str(min(HEAD, tab.evaluate("data.heads"))))
        tab.click(f"#c{min(POINTED_AT, tab.evaluate('characters.length') - 1)}")
        tab.screenshot(path=Path(__file__).with_name("page.png"))
        browser.close()


if __name__ == "__main__":
    run_script(main, __doc__)
