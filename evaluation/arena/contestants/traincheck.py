"""TrainCheck: invariants of the right program's run, checked on the case's. traincheck.py --venv VENV --right FILE CASE OUT

It learns from a right program, so it is told more than the others: the case's own, truths/CASE/right.py. What a second
run of that violates as well is left out. VENV is a virtual environment with TrainCheck, as CONTRIBUTING.md says; without
one it is not run.
"""

import pathlib
import re
import subprocess
import sys
import tempfile

import contestant

sys.path.insert(0, str(contestant.ROOT / "evaluation" / "pytorch_means" / "traincheck"))
import measure

MODEL = re.compile(r"\boptim\.\w+\((\w+)\.parameters\(\)")  # TrainCheck finds a model by its optimizer
MOST = 50  # findings


def answer(case, folder, options):
    if options.venv is None or not (options.venv / "bin" / "traincheck-collect").exists():
        raise contestant.NotRun("no virtual environment with TrainCheck was named; make one as CONTRIBUTING.md says, and "
                                "name it by --venv")
    venv = options.venv.absolute()
    if options.right is None or not options.right.exists():
        raise contestant.Failed("there is no right program to learn from")
    right, program = options.right.read_text(encoding="utf-8"), (folder / case["program"]).read_text(encoding="utf-8")
    model = MODEL.search(right)
    if not model or case["attempts"] > 1:
        raise contestant.Failed("it finds no optimizer that is built on a model's parameters()" if not model else "it takes no job of several attempts")
    with tempfile.TemporaryDirectory(prefix="lockstep-traincheck-") as name:
        here = pathlib.Path(name)

        def collect(run, text):
            own = here / f"own_{run}"
            own.mkdir()
            modules = f"import sys\nsys.path.insert(0, {str(folder)!r})\n"  # it sets PYTHONPATH itself
            return measure.collect(venv, here, run, modules + text, model[1], case["ranks"], [own])

        try:
            invariants = here / "invariants.json"
            measure.call(venv, here / "infer.log", "infer", "-f", collect("learned", right), "-o", invariants)
            healthy, _ = measure.violated(venv, here, collect("healthy", right), invariants)
            texts, _ = measure.violated(venv, here, collect("case", program), invariants)
        except (subprocess.SubprocessError, AttributeError, AssertionError) as why:
            raise contestant.Failed(f"TrainCheck did not come to an end: {str(why).split(chr(10))[0][:200]}") from None
    return [contestant.finding("violation", measure.report_of(text)) for text in texts if text not in healthy][:MOST]


if __name__ == "__main__":
    contestant.main(__doc__, "TrainCheck", answer, ("--venv", {"type": pathlib.Path}),
                    ("--right", {"type": pathlib.Path, "help": "the right program"}))
