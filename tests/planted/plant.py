"""Plants the faults of faults.json in the library, and asks which of them the tests catch.

  plant.py check                      each fault's place is found, exactly once, in this tree
  plant.py apply TREE                 plants all of them in TREE: a clean copy, such as a git worktree
  plant.py run BUILD_DIR [--only ID ...] [--jobs N] [--report FILE] [--ctest PROGRAM]

A fault is switched on at run time, by its number in LOCKSTEP_PLANTED, so one build of the planted tree holds all.
`run` first asks the tests of all faults to pass without one, then those of each fault to fail with it. Exit code 1:
a fault is not found, its tests fail without it, or they pass with it.
"""

import argparse
import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import time

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[1]
HEADER = HERE / "planted.h"
PER_TEST = 120  # s, of a test that says nothing else
PER_FAULT = 1800  # s
MOST_GROUPS = 9  # parentheses that a CTest of any version takes in one expression


def faults():
    planted = json.loads((HERE / "faults.json").read_text(encoding="utf-8"))
    for fault in planted:
        fault["number"] = int(re.search(r"PLANTED\((\d+)\)", fault["is"])[1])
    return planted


def planted_texts(tree, planted):
    """({file: its text with the faults}, complaints)"""
    texts, wrong = {}, []
    for key in ("id", "number"):
        values = [fault[key] for fault in planted]
        wrong += [f"{fault['id']}: its {key} is another fault's, too" for fault in planted if values.count(fault[key]) > 1]
    for fault in planted:
        file = tree / fault["file"]
        if not file.is_file():
            wrong.append(f"{fault['id']}: there is no {fault['file']}")
            continue
        text = texts.setdefault(file, file.read_text(encoding="utf-8"))
        times = text.count(fault["was"])
        if times == 1:
            texts[file] = text.replace(fault["was"], fault["is"])
        else:
            wrong.append(f"{fault['id']}: {fault['file']} has this {times} times: {fault['was']}")
    return texts, wrong


def check(_):
    wrong = planted_texts(ROOT, faults())[1]
    print("\n".join(wrong) or "each fault is found once")
    return 1 if wrong else 0


def apply(options):
    changed = subprocess.run(["git", "-C", options.tree, "status", "--porcelain", "--untracked-files=no"], check=True,
                             stdout=subprocess.PIPE, text=True, timeout=60).stdout
    if changed:
        print(f"{options.tree} has changes that are not committed:\n{changed}")
        return 1
    texts, wrong = planted_texts(options.tree, faults())
    if wrong:
        print("\n".join(wrong))
        return 1
    for file, text in texts.items():
        file.write_text(re.sub(r"^#include", f'#include "{HEADER}"\n#include', text, count=1, flags=re.MULTILINE), encoding="utf-8")
    print(f"planted in {len(texts)} files")
    return 0


def ctest_of(build):
    cache = (build / "CMakeCache.txt").read_text(encoding="utf-8")
    return re.search(r"^CMAKE_CTEST_COMMAND:INTERNAL=(.+)$", cache, re.MULTILINE)[1]


def first_failure(options, number, tests):
    """(what fails, of these tests, with this fault; None: all pass), and the output."""
    command = [options.ctest, "--test-dir", options.build, "-R", tests, "--stop-on-failure", "--no-tests=error",
               "--timeout", str(PER_TEST), "-j", str(options.jobs)]
    environment = {**os.environ, "LOCKSTEP_PLANTED": str(number)}
    with subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                          text=True, start_new_session=True) as ctest:
        try:
            output = ctest.communicate(timeout=PER_FAULT)[0]
        except subprocess.TimeoutExpired:
            os.killpg(ctest.pid, signal.SIGKILL)
            return f"no end within {PER_FAULT} s", ctest.communicate()[0]
    if ctest.returncode == 0:
        return None, output
    failed = re.search(r"The following tests FAILED:\s+\d+ - (\S+)", output)
    return failed[1] if failed else f"ctest ended with {ctest.returncode}", output


def unions(expressions):
    """The expressions in as few as CTest takes."""
    joined = []
    for one in sorted(set(expressions)):
        if joined and joined[-1].count("(") + one.count("(") <= MOST_GROUPS:
            joined[-1] += "|" + one
        else:
            joined.append(one)
    return joined


def run(options):
    planted = [fault for fault in faults() if not options.only or fault["id"] in options.only]
    if unknown := set(options.only or []) - {fault["id"] for fault in planted}:
        print("no such fault: " + ", ".join(sorted(unknown)))
        return 1
    options.ctest = options.ctest or ctest_of(options.build)
    for tests in unions(fault["tests"] for fault in planted):
        failed, output = first_failure(options, 0, tests)
        if failed:
            print(f"without a fault: {failed}\n{output[-2000:]}")
            return 1
    rows = []
    for fault in planted:
        begun = time.monotonic()
        by, _ = first_failure(options, fault["number"], fault["tests"])
        seconds = round(time.monotonic() - begun, 1)
        rows.append({"id": fault["id"], "number": fault["number"], "caught": by is not None, "by": by, "seconds": seconds})
        print(f"{len(rows)} of {len(planted)}: {fault['id']}: {'caught by ' + by if by else 'NOT CAUGHT'} ({seconds} s)", flush=True)
        if options.report:
            options.report.write_text(json.dumps(rows, indent=2) + "\n", encoding="utf-8")
    missed = [row["id"] for row in rows if not row["caught"]]
    print(f"{len(rows) - len(missed)} of {len(rows)} caught" + ("; not: " + ", ".join(missed) if missed else ""))
    return 1 if missed else 0


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True)
    commands.add_parser("check").set_defaults(call=check)
    of_apply = commands.add_parser("apply")
    of_apply.set_defaults(call=apply)
    of_apply.add_argument("tree", type=lambda text: pathlib.Path(text).resolve())
    of_run = commands.add_parser("run")
    of_run.set_defaults(call=run)
    of_run.add_argument("build", type=lambda text: pathlib.Path(text).resolve())
    of_run.add_argument("--only", nargs="+", metavar="ID")
    of_run.add_argument("--jobs", type=int, default=1)
    of_run.add_argument("--report", type=pathlib.Path)
    of_run.add_argument("--ctest", help="default: that of the build folder's CMake")
    options = parser.parse_args()
    return options.call(options)


if __name__ == "__main__":
    sys.exit(main())
