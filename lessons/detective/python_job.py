"""A pitfall's program in Python (lessons/NN_name/python) as a job under `lockstep watch`: folded to one variant, so that
nothing in it tells which."""

import functools
import json
import os
import pathlib
import sys

import job as jobs

HERE = pathlib.Path(__file__).resolve().parent
TESTS, HARNESS = HERE.parents[1] / "python" / "tests", HERE.parent / "python"
sys.path[:0] = [str(HARNESS), str(HERE.parent / "loopback")]
import loopback  # noqa: E402
import proof  # noqa: E402
from fold import fold, programs  # noqa: E402
from truths import ATTEMPTS, RANKS, TRUTHS, is_proved  # noqa: E402

PROOF_S = 25  # a run of a proof
SILENT_S = 10  # then a job that makes no progress is ended


def started(program, folder):
    """The command of the job; of a program that is started again, of all its attempts."""
    attempts = ATTEMPTS.get(program, 1)
    once = [sys.executable, TESTS / "start.py", RANKS, HERE / "rank.py", folder, folder / "train.py", folder / "own"]
    again = " && ".join(f'TORCHELASTIC_RESTART_COUNT={number} "$@"' for number in range(attempts))
    counted = ["env", f"TORCHELASTIC_MAX_RESTARTS={attempts - 1}", "sh", "-c", again, "sh"]
    return once if attempts == 1 else [*counted, *once]


def run(slug, fault, options):
    """The pitfall's program, with its fault or without, recorded in a folder that is gone when this returns."""
    source = programs()[slug]
    with jobs.folder_for_a_while() as folder, jobs.could_not_run():
        folded = fold(source.read_text(encoding="utf-8"), fault, keep_notes=True)
        (folder / "train.py").write_text(folded, encoding="utf-8")
        for name in ("own", "notes", "tmp"):
            (folder / name).mkdir()
        here = loopback.environment()
        path = os.pathsep.join([str(HARNESS), here["PYTHONPATH"]])
        watch = [sys.executable, "-m", "lockstep_torch.command_line", "watch", "--timeout", SILENT_S]
        code, _ = jobs.ended_with_its_own([*watch, "--into", folder / "traces", "--", *started(source.stem, folder)],
                                          **here | {"PYTHONPATH": path}, TWIN_NOTES=str(folder / "notes"), OMP_NUM_THREADS="1",
                                          TMPDIR=str(folder / "tmp"))  # torch leaves folders there
        notes = {file.name: file.read_text(encoding="utf-8") for file in (folder / "notes").iterdir()}
        found = {"world_size": RANKS, "findings": jobs.found_in(folder / "traces", options.course)}
        return jobs.Job(found, jobs.exported(folder / "traces", options.course), jobs.said_by_ranks(folder, "err"),
                        jobs.said_by_ranks(folder, "out"), functools.cache(lambda: asked(source.stem, code, notes)),
                        proved=functools.cache(lambda: proved(folded)))


def asked(program, code, notes):
    """What the program's oracle says of what the ranks noted."""
    with jobs.folder_for_a_while() as folder, jobs.could_not_run():
        for name, text in notes.items():
            (folder / name).write_text(text, encoding="utf-8")
        asks = [sys.executable, HERE / "oracle.py", program, code, folder]
        return json.loads(jobs.ended_with_its_own(asks, TMPDIR=str(folder))[1])


def proved(source):
    """By a few short runs of its own. None where the program fails in them."""
    with jobs.folder_for_a_while() as folder, jobs.could_not_run():
        (folder / "train.py").write_text(source, encoding="utf-8")
        here = loopback.environment()
        command, more = proof.of("train.py", folder, here["PYTHONPATH"], "--json", "--limit", PROOF_S)
        _, said = jobs.ended_with_its_own(command, folder, **here | more)
        return json.loads(said) if said else None


def played(case, options):
    job = run(case.page.slug, case.page.slug, options)
    named = any(found["pitfall"] == case.page.slug for found in job.outcome["findings"])
    jobs.require_shown(named or is_proved(case.page.slug, job.seen()))
    return job


def without_fault(case, options):
    return run(case.page.slug, "", options)


def ranks_of(slug):
    """Those at fault; None where either may be named."""
    return TRUTHS[slug].get("ranks")
