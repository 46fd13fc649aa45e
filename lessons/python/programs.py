"""A lesson's pitfalls as programs in Python (python/tests/twins), run under `lockstep watch` and judged by their oracles."""

import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
TESTS = ROOT / "python" / "tests"
sys.path.insert(0, str(TESTS / "twins"))
from fold import programs  # noqa: E402
from truths import ATTEMPTS, TRUTHS, judged  # noqa: E402

SILENT_S, DEADLINE_S = 10, 150
RANKS = 2


def lesson_of(wanted):
    """The folder of 05_set_epoch, 05, 5 or set_epoch; None where there is none."""
    for folder in sorted((ROOT / "lessons").glob("[0-9][0-9]_*/")):
        number, _, name = folder.name.partition("_")
        if wanted in (folder.name, number, number.lstrip("0"), name):
            return folder
    return None


def page_of(slug):
    [page] = (ROOT / "lessons").glob(f"*/pitfalls/{slug}.md")
    return page.read_text(encoding="utf-8")


def section(page, name):
    found = re.search(rf"^## {name}\n(.*?)(?=^## |\Z)", page, re.MULTILINE | re.DOTALL)
    return found[1].strip() if found else ""


def title_of(slug):
    return re.search(rf"^# {slug}: (.*)$", page_of(slug), re.MULTILINE)[1]


def call(command, **variables):
    return subprocess.run([str(word) for word in command], capture_output=True, text=True, timeout=DEADLINE_S,
                          stdin=subprocess.DEVNULL, env={**os.environ, "OMP_NUM_THREADS": "1", **variables})


def started(program, folder):
    """The command of a job on two ranks; of a program that is started again, both attempts."""
    once = [sys.executable, TESTS / "start.py", RANKS, program, folder]
    attempts = ATTEMPTS.get(programs_name(program), 1)
    again = " && ".join(f'TORCHELASTIC_RESTART_COUNT={number} "$@"' for number in range(attempts))
    return once if attempts == 1 else ["env", f"TORCHELASTIC_MAX_RESTARTS={attempts - 1}", "sh", "-c", again, "sh", *once]


def programs_name(program):
    return pathlib.Path(program).stem


def run(program, fault="", oracle=""):
    """Runs a program under watch: what it printed, {what must be so: whether it is}, and what was found. `oracle` names
    the program whose oracle judges it, where it is another."""
    with tempfile.TemporaryDirectory(prefix="lockstep-python-") as folder:
        traces, notes, own = (pathlib.Path(folder, name) for name in ("traces", "notes", "own"))
        notes.mkdir()
        own.mkdir()
        watch = [sys.executable, "-m", "lockstep_torch.command_line"]
        path = os.pathsep.join([str(TESTS / "twins"), *filter(None, [os.environ.get("PYTHONPATH")])])
        job = call([*watch, "watch", "--timeout", SILENT_S, "--into", traces, "--", *started(program, own)],
                   TWIN_FAULT=fault, TWIN_NOTES=str(notes), PYTHONPATH=path)
        seen = judged(oracle or programs_name(program), job.returncode, notes)
        said = call([*watch, "diagnose", "--json", traces])
    return job, seen, json.loads(said.stdout)["findings"] if said.stdout else []
