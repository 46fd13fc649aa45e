"""One page of everything that the last runs reported: ./lockstep report

Reads the comparison reports of a folder (./lockstep run leaves them in reports/out) and the committed results in
reports/results, and writes one HTML file that needs no network and no other file.
Exit codes: 0 written; 2 usage; 3 nothing to show, or it could not be written.
"""

import ctrl_c  # noqa: F401, I001

import argparse
import pathlib
import sys
import time

import charts
import collect
import files
import matrix
import measured
import pictures
import specs
import summary
import template


class NothingToShow(Exception):
    pass


def run_of(drawn, comparison, variant):
    """What a run's place in the page needs."""
    return {"id": pictures.run_id(comparison["lesson"], variant["name"]), "variant": variant,
            "kind": specs.kind(variant), "right": variant["verdict"] in summary.RIGHT, "open": False,
            **pictures.of_run(drawn, comparison, variant)}


def runs_of(drawn, comparison):
    """The first of which pictures show the fault is open."""
    runs = [run_of(drawn, comparison, variant) for variant in comparison["variants"]]
    for run in [run for run in runs if run["lead"]][:1]:
        run["open"] = True
    return runs


def page(collected):
    """The page's text."""
    drawn = charts.Charts()
    comparisons = collected.comparisons
    lessons = [{**summary.of_lesson(comparison), "losses": pictures.lesson_losses(drawn, comparison),
                "runs": runs_of(drawn, comparison)} for comparison in comparisons]
    timings, not_measured = measured.add(drawn, collected.measured)
    return template.page(
        "page.html.j2", drawn, lessons=lessons, total=summary.total(lessons),
        planted=matrix.planted_and_named(drawn, comparisons), sweep=matrix.sweep(drawn, collected.measured),
        wrong_in_sweep=matrix.wrong_in_sweep(collected.measured), timings=timings, not_measured=not_measured,
        environments=summary.environments(comparisons), skips=summary.skips(comparisons), left_out=collected.left_out)


def arguments_of(line):
    parser = argparse.ArgumentParser(
        prog="lockstep report", description=__doc__.split("\n\n")[0],
        epilog="Of a recorded job: ./lockstep report FOLDER ... [--out FILE], by default report-FOLDER.html in the "
               "working directory. A page that is there is replaced; a link is not followed. Exit codes: 0 written; 2 usage; "
               "3 nothing to show, or it could not be written.")
    parser.add_argument("--reports", type=pathlib.Path, metavar="DIR", default=collect.ROOT / "reports" / "out",
                        help="the folder with the lessons' JSON reports (default: reports/out)")
    parser.add_argument("--out", type=pathlib.Path, metavar="FILE",
                        help="the page to write (default: report.html in the reports' folder)")
    parser.add_argument("--measured", type=pathlib.Path, metavar="DIR", default=collect.ROOT / "reports" / "results",
                        help="the folder with benchmarks' results (default: reports/results)")
    return parser.parse_args(line)


def make(arguments):
    """(the written file, what was collected)."""
    for folder in (arguments.reports, arguments.measured):
        if not folder.is_dir():
            raise NothingToShow(f"there is no folder {files.shown(folder)}")
    collected = collect.collect(arguments.reports, arguments.measured)
    if not collected.comparisons:
        why = "".join(f"\n          {file}: {reason}" for file, reason in collected.left_out)
        raise NothingToShow(f"there is no lesson's report in {files.shown(arguments.reports)}{why}")
    file = arguments.out or arguments.reports / "report.html"
    files.write(file, page(collected), over=files.PAGE)
    return file, collected


def main(line):
    started = time.monotonic()
    arguments = arguments_of(line)
    try:
        file, collected = make(arguments)
    except NothingToShow as error:
        print(f"lockstep report: {error}.\n          Run some first: ./lockstep run 05, or ./lockstep run all",
              file=sys.stderr)
        return 3
    except OSError as error:
        print(f"lockstep report: {files.shown(error.filename or arguments.out)}: {error.strerror}.", file=sys.stderr)
        return 3
    for name, why in collected.left_out:
        print(f"lockstep report: left out {name}: {why}", file=sys.stderr)
    number = len(collected.comparisons)
    print(f"{files.shown(file)}: {number} lesson{'s' if number != 1 else ''}, {file.stat().st_size / 1e6:.1f} MB, "
          f"{time.monotonic() - started:.1f} s")
    return 0


if __name__ == "__main__":
    template.run(main)
