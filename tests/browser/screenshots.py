"""The README's two pictures of the report, of a page that ./lockstep report made from a run of all lessons.

usage: screenshots.py PAGE FOLDER   makes FOLDER/report_light.png and FOLDER/report_dark_narrow.png
"""

import pathlib
import sys

import browser

RUN = "run-13_clipping_and_mixed_precision-local-overflow-skip"
# Name, size, dark, the run that is opened, what stands at the top.
PICTURES = [("report_light", (1280, 1350), False, "", "header"),
            ("report_dark_narrow", (360, 1500), True, RUN, RUN)]


def main(page, folder):
    browser.skip_where_it_is_missing()
    for name, size, dark, run, top in PICTURES:
        window = browser.Browser(size, dark)
        try:
            window.open(page, f"#{run}" if run else "")
            for figure in window.js("return [...document.querySelectorAll('.chart')].filter(f => "
                                    "f.checkVisibility() && f.getBoundingClientRect().top < 2 * innerHeight && "
                                    "f.getBoundingClientRect().bottom > -innerHeight).map(f => f.id)"):
                window.draw(figure)
            window.js("document.documentElement.style.scrollPaddingTop = 0; document.activeElement.blur();"
                      "(document.getElementById(arguments[0]) ?? document.querySelector(arguments[0])).scrollIntoView()", top)
            window.screenshot(folder / f"{name}.png")
        finally:
            window.close()


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    main(*map(pathlib.Path, sys.argv[1:]))
