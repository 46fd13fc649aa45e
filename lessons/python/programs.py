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
from fold import fold, programs  # noqa: E402, F401  (fold: for exercise.py)
from truths import ATTEMPTS, is_proved, judged, variables  # noqa: E402, F401  (is_proved: for run.py)

SILENT_S, DEADLINE_S = 10, 150
USAGE, COULD_NOT_RUN, DEADLINE, INTERRUPTED = 2, 3, 124, 130
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
    """Ends the command, and what it has started, where it is interrupted or takes too long."""
    with subprocess.Popen([str(word) for word in command], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                          stdin=subprocess.DEVNULL, env={**os.environ, "OMP_NUM_THREADS": "1", **variables}) as job:
        try:
            out, err = job.communicate(timeout=DEADLINE_S)
        except (KeyboardInterrupt, subprocess.TimeoutExpired) as why:
            job.terminate()  # which watch passes on
            job.communicate()
            if isinstance(why, KeyboardInterrupt):
                raise
            refuse(f"{command[0]} took longer than {DEADLINE_S} s, and was ended", DEADLINE)
    return subprocess.CompletedProcess(command, job.returncode, out, err)


def refuse(why, code=USAGE):
    print(f"error: {why}", file=sys.stderr)
    sys.exit(code)


def ended_cleanly(main):
    """Runs a command; Ctrl-C and what the system refuses are no stack trace."""
    try:
        main()
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
    except OSError as error:
        refuse(str(error), COULD_NOT_RUN)


def started(program, folder, attempts):
    """The command of a job on two ranks; of a program that is started again, both attempts."""
    once = [sys.executable, TESTS / "start.py", RANKS, program, folder]
    again = " && ".join(f'TORCHELASTIC_RESTART_COUNT={number} "$@"' for number in range(attempts))
    return once if attempts == 1 else ["env", f"TORCHELASTIC_MAX_RESTARTS={attempts - 1}", "sh", "-c", again, "sh", *once]


def programs_name(program):
    return pathlib.Path(program).stem


def run(program, fault="", oracle=""):
    """Runs a program under watch: what it printed, {what must be so: whether it is}, and what was found. `oracle` names
    the program whose oracle judges it, where it is another."""
    name = oracle or programs_name(program)
    with tempfile.TemporaryDirectory(prefix="lockstep-python-") as folder:
        traces, notes, own = (pathlib.Path(folder, name) for name in ("traces", "notes", "own"))
        notes.mkdir()
        own.mkdir()
        watch = [sys.executable, "-m", "lockstep_torch.command_line"]
        path = os.pathsep.join([str(TESTS / "twins"), *filter(None, [os.environ.get("PYTHONPATH")])])
        job = call([*watch, "watch", "--timeout", SILENT_S, "--into", traces, "--", *started(program, own, ATTEMPTS.get(name, 1))],
                   TWIN_FAULT=fault, TWIN_NOTES=str(notes), PYTHONPATH=path, **variables(name))
        seen = judged(name, job.returncode, notes)
        said = call([*watch, "diagnose", "--json", traces])
    if not said.stdout:
        refuse(f"the run could not be diagnosed: {said.stderr.strip() or job.stderr[-1000:]}", COULD_NOT_RUN)
    return job, seen, json.loads(said.stdout)["findings"]
