"""The README's picture of the report: a broken variant beside the right one, of what `./lockstep run 03` left.

usage: screenshots.py [--reports DIR] [--run LESSON-VARIANT] [--width PIXELS] [--dark] [--out FILE]
Without options it makes reports/results/report.png anew.
"""

import argparse
import pathlib
import subprocess
import sys
import tempfile

import browser

ROOT = pathlib.Path(__file__).resolve().parents[2]
MARGIN = 12
# From the run's first line to the end of what the oracle measured: the loss and the rest are below.
SHOWN = """const run = document.getElementById(arguments[0]), box = run.getBoundingClientRect();
    const last = run.querySelector('.oracles') ?? run, end = last.getBoundingClientRect().bottom;
    return {x: box.left + scrollX, y: box.top + scrollY, width: box.width, height: end - box.top};"""


def arguments_of(line):
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--reports", type=pathlib.Path, default=ROOT / "reports" / "out")
    parser.add_argument("--run", default="03_ddp-no-gradient-sync")
    parser.add_argument("--width", type=int, default=browser.WIDE[0])
    parser.add_argument("--dark", action="store_true")
    parser.add_argument("--out", type=pathlib.Path, default=ROOT / "reports" / "results" / "report.png")
    return parser.parse_args(line)


def take(window, page, run, file):
    window.open(page, f"#{run}")
    for figure in window.js("return [...document.getElementById(arguments[0]).querySelectorAll('.chart')].filter("
                            "f => f.checkVisibility()).map(f => f.id)", run):
        window.draw(figure)
    window.js("document.activeElement.blur(); document.querySelector('.filters').remove();"
              "for (const other of document.querySelectorAll('.run'))"
              "  if (other.id !== arguments[0]) other.style.visibility = 'hidden'", run)
    box = window.js(SHOWN, run)
    window.screenshot(file, {"x": box["x"] - MARGIN, "y": box["y"] - MARGIN, "width": box["width"] + 2 * MARGIN,
                             "height": box["height"] + 2 * MARGIN, "scale": 1})


def main(arguments):
    browser.skip_where_it_is_missing()
    with tempfile.TemporaryDirectory(prefix="lockstep-picture-") as folder:
        page = pathlib.Path(folder) / "report.html"
        subprocess.run([sys.executable, ROOT / "reports" / "html" / "report.py",
                        "--reports", arguments.reports, "--out", page], check=True,
                       stdout=subprocess.DEVNULL)
        window = browser.Browser((arguments.width, 900), arguments.dark)
        try:
            take(window, page, f"run-{arguments.run}", arguments.out)
        finally:
            window.close()
    print(f"{arguments.out}: {arguments.out.stat().st_size / 1000:.0f} KB")


if __name__ == "__main__":
    main(arguments_of(sys.argv[1:]))
