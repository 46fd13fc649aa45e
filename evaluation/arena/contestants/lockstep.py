"""Our detectors at one level, on a job under `lockstep watch`. lockstep.py --level L --build BUILD [--kept FOLDER] CASE OUT

A job is recorded whole; the level says how much of its traces the detectors are shown: 0 the collectives, 1 also model,
optimizer and gradients, 2 also samples and metrics. With --kept, what one level has recorded is not recorded again.
"""

import pathlib
import shutil
import subprocess
import sys
import tempfile

import contestant

sys.path.insert(0, str(contestant.ROOT / "evaluation"))
import recorded_runs
import scoring

SILENT_S = 10
DEADLINE_S = 100


def record(case, folder, package, traces):
    """All of a run or nothing of it is in `traces`."""
    new = traces.with_suffix(".new")
    shutil.rmtree(new, ignore_errors=True)
    new.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="lockstep-arena-") as own:
        watch = [sys.executable, "-m", "lockstep_torch.command_line", "watch", "--into", new, "--timeout", SILENT_S, "--"]
        try:
            contestant.call([*watch, *contestant.words(case, own)], folder, DEADLINE_S, PYTHONPATH=str(package))
        except subprocess.TimeoutExpired:
            raise contestant.Failed(f"the job under watch did not end in {DEADLINE_S} s") from None
    new.mkdir(exist_ok=True)
    new.rename(traces)


def answer(case, folder, options):
    build = options.build.resolve()
    package = build / "python"
    if not list(package.glob("lockstep_torch/_extension*.so")) or not (build / "lockstep-course").exists():
        raise contestant.NotRun(f"{build.name} holds no lockstep-course and no package of Python's; ./lockstep build makes both")
    with tempfile.TemporaryDirectory(prefix="lockstep-arena-") as temporary:
        traces = (options.kept or pathlib.Path(temporary)).resolve() / case["id"]
        if not traces.exists():
            record(case, folder, package, traces)
        if not any(traces.rglob("*.trace")):
            return []  # no rank came as far as to be recorded
        try:
            said = recorded_runs.diagnosed(build / "lockstep-course", traces, options.level)
        except (scoring.ScoreError, subprocess.TimeoutExpired) as why:
            raise contestant.Failed(str(why)) from None
    return [contestant.finding(one["severity"], one["pitfall"], one["pitfall"], one["ranks"], one["step"]) for one in said["findings"]]


if __name__ == "__main__":
    contestant.main(__doc__, lambda options: f"lockstep level {options.level}", answer,
                    ("--level", {"type": int, "choices": (0, 1, 2), "required": True}),
                    ("--build", {"type": pathlib.Path, "required": True, "help": "a build folder of Lockstep"}),
                    ("--kept", {"type": pathlib.Path, "help": "keeps what was recorded, for the other levels"}))
