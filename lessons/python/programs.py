"""A lesson's pitfalls as programs in Python (lessons/NN_name/python), run under `lockstep watch` and judged by their oracles."""

import ast
import collections
import contextlib
import dataclasses
import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import tempfile

import work
from prose import ROOT

HERE = pathlib.Path(__file__).resolve().parent
TESTS = ROOT / "python" / "tests"
sys.path[:0] = [str(HERE.parent / "loopback"), str(ROOT / "reports" / "html")]
import files  # noqa: E402, F401  (for those that import this)
import loopback  # noqa: E402
from fold import fold, programs  # noqa: E402, F401  (fold: for exercise.py)
from truths import ATTEMPTS, TRUTHS, is_proved, judged, variables  # noqa: E402, F401  (for those that import this)

SILENT_S, DEADLINE_S, ENDS_S = 10, 150, 5
FINDING, USAGE, COULD_NOT_RUN, SKIPPED, DEADLINE, INTERRUPTED = 1, 2, 3, 77, 124, 130
RANKS = 2
# Programs that are about two ranks, whose recipe fits two, or in which a fault only shows on two: the others run on three, too.
OF_TWO = {
    "accumulates": "it has as many batches as its windows take",
    "contrastive": "its batches must all be whole",
    "evaluates": "its 21 test samples are three equal shares, which hide two of its faults",
    "evaluates_norm": "its oracle counts the batches of shares without padding",
    "groups": "its groups are of ranks 0 and 1",
    "large_images": "its samples are dealt to two ranks evenly",
    "launches_itself": "it starts two ranks itself",
    "midway": "it saves after half of an epoch, which two ranks share evenly",
    "own_disks": "its files are dealt to two ranks evenly",
    "seeded": "its samples are dealt to two ranks evenly",
    "uneven_shards": "its data lie in two shards",
    "warms_up": "its oracle counts the updates of shares without padding",
    "windows": "the last microbatch is short on two ranks, and whole on three",
}


@dataclasses.dataclass(frozen=True)
class Setting:
    """How many ranks a job has, and by how much its seeds are others than those in the program."""
    ranks: int = RANKS
    seed: int = 0

    def __str__(self):
        return f"{self.ranks} rank{'s' if self.ranks > 1 else ''}, seed {self.seed}"


Run = collections.namedtuple("Run", "job seen found notes detectors work")


def lesson_of(wanted):
    """The folder of 05_set_epoch, 05, 5 or set_epoch; None where there is none."""
    for folder in sorted((ROOT / "lessons").glob("[0-9][0-9]_*/")):
        number, _, name = folder.name.partition("_")
        if wanted in (folder.name, number, number.lstrip("0"), name):
            return folder
    return None


def lesson_with(slug):
    [page] = (ROOT / "lessons").glob(f"*/pitfalls/{slug}.md")
    return page.parents[1]


def page_of(slug):
    return (lesson_with(slug) / "pitfalls" / f"{slug}.md").read_text(encoding="utf-8")


def title_of(slug):
    return re.search(rf"^# {slug}: (.*)$", page_of(slug), re.MULTILINE)[1]


def oracle_of(program):
    """What its oracle says of a right run, in a sentence."""
    [oracle] = [node for node in ast.parse(program.read_text(encoding="utf-8")).body
                if isinstance(node, ast.FunctionDef) and node.name == "oracle"]
    return " ".join(ast.get_docstring(oracle).split())


def call(command, **variables):
    """Ends the command, and what it has started, where it is interrupted or takes too long."""
    with subprocess.Popen([str(word) for word in command], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                          stdin=subprocess.DEVNULL, env={**os.environ, "OMP_NUM_THREADS": "1", **variables},
                          start_new_session=True) as job:
        try:
            out, err = job.communicate(timeout=DEADLINE_S)
        except (KeyboardInterrupt, subprocess.TimeoutExpired) as why:
            job.terminate()  # which watch passes on
            with contextlib.suppress(subprocess.TimeoutExpired):
                job.communicate(timeout=ENDS_S)
            with contextlib.suppress(ProcessLookupError):
                os.killpg(job.pid, signal.SIGKILL)  # a rank that is left holds the pipes
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


def started(program, folder, attempts, ranks=RANKS):
    """The command of a job; of a program that is started again, all attempts."""
    once = [sys.executable, TESTS / "start.py", ranks, program, folder]
    again = " && ".join(f'TORCHELASTIC_RESTART_COUNT={number} "$@"' for number in range(attempts))
    return once if attempts == 1 else ["env", f"TORCHELASTIC_MAX_RESTARTS={attempts - 1}", "sh", "-c", again, "sh", *once]


def programs_name(program):
    return pathlib.Path(program).stem


def notes_in(folder):
    """What each rank has noted, by rank."""
    return {int(file.stem): json.loads(file.read_text(encoding="utf-8")) for file in sorted(folder.glob("*.json"))}


def run(program, fault="", oracle="", setting=Setting()):
    """Runs a program under watch. Of the Run, `seen` is {what must be so: whether it is}. `oracle` names the program whose
    oracle judges it, where it is another."""
    name = oracle or programs_name(program)
    with tempfile.TemporaryDirectory(prefix="lockstep-python-") as folder:
        traces, notes, own = (pathlib.Path(folder, name) for name in ("traces", "notes", "own"))
        notes.mkdir()
        own.mkdir()
        here = loopback.environment()
        paths = os.pathsep.join([str(HERE), here["PYTHONPATH"]])
        told_by = {"TWIN_RANKS": str(setting.ranks), **here, "PYTHONPATH": paths, **variables(name)}
        told_by |= {"TWIN_SEED": str(setting.seed)} if setting.seed else {}
        job = call([sys.executable, "-m", "lockstep_torch.command_line", "watch", "--timeout", SILENT_S, "--into", traces, "--",
                    *started(program, own, ATTEMPTS.get(name, 1), setting.ranks)],
                   TWIN_FAULT=fault, TWIN_NOTES=str(notes), **told_by)
        told = call([sys.executable, HERE / "judge.py", name, job.returncode, notes, traces], **told_by)
        if told.returncode != 0:
            refuse(f"the run could not be judged: {told.stderr[-1000:].strip() or job.stderr[-1000:].strip()}", COULD_NOT_RUN)
        said = json.loads(told.stdout)
        return Run(job, said["seen"], said["findings"], notes_in(notes), said["detectors"], work.of_job(traces, setting.ranks))
