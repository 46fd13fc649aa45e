"""One page of a job that was proved: lockstep prove --html FILE -- COMMAND

Reads what `lockstep prove --json` says (reports/schema/prove.schema.json) from standard input, and writes one HTML file
that needs no network and no other file.
"""

import ctrl_c  # noqa: F401, I001

import argparse
import json
import pathlib
import sys

import charts
import template

LOOKS = {"held": ("holds", "correct"), "fails": ("FAILS", "broken"), "cannot be told": ("?", "skipped")}


def main(line):
    parser = argparse.ArgumentParser(prog="lockstep prove")
    parser.add_argument("file", type=pathlib.Path, help="the page to write")
    arguments = parser.parse_args(line)
    said = json.load(sys.stdin.buffer)
    return template.written("prove", arguments.file,
                            lambda: template.page("prove.html.j2", charts.Charts(), said=said, looks=LOOKS))


if __name__ == "__main__":
    template.run(main)
