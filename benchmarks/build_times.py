"""How long it takes from a new clone to an answer, to lessons, to tests, and from an edit to its result; and what the
compilers' time is spent on.

Run: ./lockstep bench build_times [--edits]   on an otherwise idle machine. It clones what is committed, sets up LibTorch
anew there (2.5 GB are downloaded unless a cache has them), and compiles with no compiler cache. About 30 minutes, 8 GB.
Writes reports/out/build_times.json; with --edits only the edits' rows of it, in 10 minutes.
"""

import argparse
import collections
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
OUT = ROOT / "reports" / "out" / "build_times.json"
LESSON = "05_set_epoch"
DETECTOR = "common/lockstep/diagnose/detectors/epoch.cpp"
ITS_TESTS = "*Epoch*"
# What is asked for, in seconds.
TARGETS = {"first answer": 20, "diagnosis": 90, "first lesson": 240, "all lessons": 540, "lessons and tests built": 600,
           "ctest -L lessons": 120, "edited lesson": 8, "edited detector": 20}


class Clone:
    def __init__(self, folder):
        self.root = folder / "lockstep"
        subprocess.run(["git", "clone", "-q", ROOT, self.root], check=True)
        self.environment = {**os.environ, "CCACHE_DISABLE": "1"}
        for name in [name for name in self.environment if name.startswith("LOCKSTEP_")]:
            del self.environment[name]

    def seconds(self, *command):
        """Of a command that ends with 0, or with 1, which says that something was found."""
        print("$", *command, file=sys.stderr)
        start = time.monotonic()
        done = subprocess.run(command, cwd=self.root, env=self.environment, stdin=subprocess.DEVNULL,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        if done.returncode not in (0, 1):
            sys.exit(f"{' '.join(map(str, command))} ended with {done.returncode}:\n{done.stdout[-3000:]}")
        return round(time.monotonic() - start, 1)

    def build_folder(self):
        return next(folder for folder in (self.root / "build").glob("*-*") if (folder / "tests").exists())

    def edited(self, source, *command):
        """The middle of three times from a changed source to the command's end."""
        times = []
        for number in range(3):
            with open(self.root / source, "a", encoding="utf-8") as file:
                file.write(f"// {number}\n")
            times.append(self.seconds(*command))
        return sorted(times)[1]


def spent(build):
    """Seconds of compilers and linkers by folder, from Ninja's log: the last run of each edge."""
    edges = {}
    for line in (build / ".ninja_log").read_text(encoding="utf-8").splitlines()[1:]:
        start, end, _, output, command = line.split("\t")
        edges[start, end, command] = (int(end) - int(start), output)
    folders = collections.Counter()
    for milliseconds, output in edges.values():
        parts = pathlib.PurePath(output.removeprefix(f"{build}/")).parts
        inside = parts.index(next(part for part in parts if part.endswith(".dir"))) if output.endswith(".o") else 0
        place = {"common": ("common", *parts[inside + 1:-1]), "lessons": ("lessons", parts[inside])}.get(parts[0], parts[:2])
        kind = "precompiled headers" if output.endswith(".pch") else "/".join(place)
        folders[kind if output.endswith((".o", ".pch")) else "links and the rest"] += milliseconds
    return {folder: round(milliseconds / 1000, 1) for folder, milliseconds in folders.most_common()}


def edits(clone):
    clone.seconds("./lockstep", "run", LESSON)
    ninja, build = next(clone.root.glob(".lockstep/torch-*/bin/ninja")), clone.build_folder()
    tests = (f"'{ninja}' -C '{build}' diagnose_test && "
             f"'{build}/tests/diagnose_test' --gtest_filter='{ITS_TESTS}'")
    clone.seconds("sh", "-c", tests)
    return {"edited lesson": clone.edited(f"lessons/{LESSON}/lesson.cpp", "./lockstep", "run", LESSON),
            "edited detector": clone.edited(DETECTOR, "sh", "-c", tests)}


def measure(folder):
    clone = Clone(folder)
    rows = {"first answer": clone.seconds("./lockstep", "list")}
    rows["diagnosis"] = clone.seconds("./lockstep", "diagnose", "tests/diagnose/old_traces/no_initial_broadcast")
    set_up = clone.seconds("./lockstep", "setup")
    lesson = clone.seconds("./lockstep", "run", "01")
    lessons = clone.seconds("./lockstep", "run", "all")
    again = clone.seconds("./lockstep", "run", "all")  # with nothing to build
    rest = clone.seconds("./lockstep", "build")
    build = clone.build_folder()
    parts = spent(build)
    ctest = next(clone.root.glob(".lockstep/torch-*/lib/python3*/site-packages/cmake/data/bin/ctest"))
    rows["first lesson"] = set_up + lesson
    rows["all lessons"] = set_up + lesson + lessons
    rows["lessons and tests built"] = round(lesson + lessons - again + rest, 1)
    rows["ctest -L lessons"] = clone.seconds(ctest, "--test-dir", build, "-L", "lessons", "-j2")
    rows |= edits(clone)
    return {"set_up": set_up, "all_lessons_run_again": again, "rest_built": rest, "seconds": rows, "spent_on": parts}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--edits", action="store_true", help="measure the rows of edits only")
    only_edits = parser.parse_args().edits
    folder = pathlib.Path(tempfile.mkdtemp(prefix="build-times-", dir=ROOT / "build"))
    try:
        if only_edits:
            figures = json.loads(OUT.read_text(encoding="utf-8"))
            figures["seconds"] |= edits(Clone(folder))
        else:
            figures = measure(folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    revision = subprocess.run(["git", "-C", ROOT, "rev-parse", "--short", "HEAD"], text=True, capture_output=True)
    result = {**figures, "benchmark": "build_times", "date": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
              "revision": revision.stdout.strip(), "cores": os.cpu_count(), "targets": TARGETS}
    OUT.parent.mkdir(parents=True, exist_ok=True)
    OUT.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
    for name, seconds in figures["seconds"].items():
        print(f"{name:26} {seconds:7.1f} s of {TARGETS[name]}")
    for part, seconds in list(figures["spent_on"].items())[:15]:
        print(f"  {part:38} {seconds:7.1f}")
    print(OUT)


if __name__ == "__main__":
    main()
