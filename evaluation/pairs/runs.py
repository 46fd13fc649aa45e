"""Lessons' runs for the comparisons: how one is recorded, and what `lockstep-course compare` says of two."""

import argparse
import json
import os
import pathlib
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT / "reports"))  # results.py
DEADLINE_S = 900  # of all variants of a lesson
COMPARE_S = 60


def names(text):
    return {name for name in text.split(",") if name}


def parser_of(usage):
    """What every script of pairs can be told."""
    parser = argparse.ArgumentParser(description=usage, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", type=pathlib.Path, default=ROOT / "build" / "clang-2.11.0")
    parser.add_argument("--course", type=pathlib.Path, help="default: lockstep-course of the build")
    parser.add_argument("--kept", type=pathlib.Path)
    parser.add_argument("--only", type=names, default="")
    return parser


def programs_in(folder):
    return sorted(path for path in pathlib.Path(folder).iterdir() if path.name[:2].isdigit() and path.is_file())


def described(program):
    said = subprocess.run([program, "--describe"], capture_output=True, text=True, timeout=COMPARE_S, check=True)
    return json.loads(said.stdout)


def record(program, folder, variant="all", world_size=None, **environment):
    """Runs the variants, keeps their traces in FOLDER/LESSON/VARIANT, and returns the report: by variant, how it ended.
    What is there already is not run again."""
    report = pathlib.Path(folder) / f"{program.name}.json"
    if not report.is_file():
        pathlib.Path(folder).mkdir(parents=True, exist_ok=True)
        command = [program, "--variant", variant, "--trace", folder, "--json", report]
        command += [] if world_size is None else ["--world-size", str(world_size)]
        done = subprocess.run([str(word) for word in command], stdin=subprocess.DEVNULL, capture_output=True, text=True,
                              timeout=DEADLINE_S, env={**os.environ, **environment})
        if not report.is_file():
            sys.exit(f"{program.name} left no report (exit code {done.returncode}):\n{done.stderr}")
    runs = json.loads(report.read_text(encoding="utf-8"))["variants"]
    return {run["name"]: {name: run[name] for name in ("kind", "part", "outcome")} for run in runs}


def compare(course, a, b):
    """What is said of two folders, and the exit code."""
    done = subprocess.run([str(course), "compare", "--json", str(a), str(b)], stdin=subprocess.DEVNULL,
                          capture_output=True, text=True, timeout=COMPARE_S)
    if done.returncode not in (0, 1, 3):
        sys.exit(f"compare {a} {b} exited with {done.returncode}:\n{done.stderr}")
    return json.loads(done.stdout), done.returncode
