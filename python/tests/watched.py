"""Runs a job of two ranks under `lockstep watch`."""

import json
import pathlib
import sys
import tempfile

from package import LOCKSTEP, run

HERE = pathlib.Path(__file__).resolve().parent
RANKS = 2
SILENT_S = 10
DEADLINE_S = 100


def started(program, attempts, folder, *arguments):
    """The command that starts a job. Several attempts are one command, counted as torchrun counts them."""
    again = " && ".join(f'TORCHELASTIC_RESTART_COUNT={number} "$@"' for number in range(attempts))
    twice = ["env", f"TORCHELASTIC_MAX_RESTARTS={attempts - 1}", "sh", "-c", again, "sh"] if attempts > 1 else []
    return [*twice, sys.executable, HERE / "start.py", RANKS, program, folder, *arguments]


def watched(program, attempts, *arguments, **environment):
    """The exit code and the findings."""
    with tempfile.TemporaryDirectory(prefix="lockstep-others-") as folder:
        traces, own = pathlib.Path(folder, "traces"), pathlib.Path(folder, "own")
        own.mkdir()
        code = run([*LOCKSTEP, "watch", "--into", traces, "--timeout", SILENT_S, "--",
                    *started(program, attempts, own, *arguments)], DEADLINE_S, **environment).returncode
        if not any(traces.rglob("*.trace")):
            return code, []  # no rank came as far as to be recorded
        said = run([*LOCKSTEP, "diagnose", "--json", traces], DEADLINE_S)
        if not said.stdout:
            sys.exit(f"{program.name}: {code}, {sorted(traces.glob('*'))}: {said.stderr}")
        return code, [{key: one.get(key) for key in ("severity", "pitfall", "ranks", "step", "after") if key in one}
                       for one in json.loads(said.stdout)["findings"]]
