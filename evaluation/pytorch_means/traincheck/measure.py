"""TrainCheck on three faults: invariants of a correct run, checked on broken runs and on another correct one.

usage: measure.py VENV [--out FILE]

VENV is a virtual environment with TrainCheck, never the project's own; see CONTRIBUTING.md. Both runs
without a fault differ in their seed. What is violated by the other correct run as well is not counted
(that is its false alarm). A fault is named where a violated invariant holds one of its words.
"""

import argparse
import json
import os
import pathlib
import re
import shlex
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent

OUT = HERE.parents[2] / "reports" / "out" / "side_by_side_traincheck.json"
DEADLINE_S = 400
# Words of which a violated invariant must hold one, written before the first run was read.
WORDS = {"gradients-not-zeroed": r"zero_grad",
         "no-gradient-sync": r"ConsistencyRelation|DistributedDataParallel|all_?reduce",
         "optimizer-built-on-other-parameters": r"optimizer|\.step\b"}


def call(venv, log, tool, *arguments, **environment):
    with open(log, "w") as file:
        subprocess.run([venv / "bin" / f"traincheck-{tool}", *map(str, arguments)], cwd=log.parent, check=True,
                       stdin=subprocess.DEVNULL, stdout=file, stderr=subprocess.STDOUT, timeout=DEADLINE_S,
                       env={**os.environ, "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1", **environment})


def collect(venv, folder, name, program, model="model", ranks=2, arguments=(), **environment):
    """The folder with the traces of one run of a program, whose model is in the variable `model`."""
    here = folder / f"run_{name}"
    here.mkdir()
    (here / "program.py").write_text(program)
    words = " ".join(shlex.quote(str(word)) for word in arguments)
    (here / "run.sh").write_text(f"exec {venv}/bin/python -m torch.distributed.run --standalone --nproc-per-node {ranks} "
                                 f"{HERE}/without_driver.py program.py {words}\n")
    call(venv, here / "collect.log", "collect", "-p", "program.py", "-s", "run.sh", "--models-to-track", model,
         "--model-tracker-style", "sampler", "--output-dir", here / name, **environment)
    return here / name


def violated(venv, folder, traces, invariants):
    """The invariants, as text, that a run violates; and how many were looked at."""
    out = folder / f"checked_{traces.name}"
    said = folder / f"check_{traces.name}.log"
    call(venv, said, "check", "-f", traces, "-i", invariants, "-o", out, "--no-html-report")
    log = said.read_text().replace("\r", "\n")
    failed, total = map(int, re.search(r"Total failed invariants: (\d+)/(\d+)", log).groups())
    not_triggered = int(re.search(r"not triggered: (\d+)/", log)[1])
    texts = []
    for file in out.rglob("failed.log"):
        decoder, text, at = json.JSONDecoder(), file.read_text(), 0
        while at < len(text):
            if text[at].isspace():
                at += 1
                continue
            entry, at = decoder.raw_decode(text, at)
            texts.append(json.dumps(entry["invariant"], sort_keys=True))
    assert len(texts) == failed, (len(texts), failed)
    return texts, total - not_triggered


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("venv", type=pathlib.Path)
    parser.add_argument("--out", type=pathlib.Path, default=OUT)
    arguments = parser.parse_args()
    venv = arguments.venv.absolute()
    if not (venv / "bin" / "traincheck-collect").exists():
        parser.error(f"there is no traincheck-collect in {venv}/bin: install TrainCheck there")
    listed = subprocess.run([venv / "bin" / "pip", "list", "--format", "json"], capture_output=True, check=True)
    version = next(one["version"] for one in json.loads(listed.stdout) if one["name"] == "traincheck")
    program = (HERE / "program.py").read_text()
    with tempfile.TemporaryDirectory(prefix="lockstep-traincheck-") as name:
        folder = pathlib.Path(name)
        invariants = folder / "invariants.json"
        call(venv, folder / "infer.log", "infer", "-f", collect(venv, folder, "learned", program, FAULT="", SEED="0"), "-o", invariants)
        inferred = len(invariants.read_text().splitlines())
        healthy, looked = violated(venv, folder, collect(venv, folder, "healthy", program, FAULT="", SEED="1"), invariants)
        cells = {}
        for slug, words in WORDS.items():
            texts, _ = violated(venv, folder, collect(venv, folder, slug, program, FAULT=slug, SEED="1"), invariants)
            new = [text for text in texts if text not in healthy]
            named = [text for text in new if re.search(words, text, re.IGNORECASE)]
            cells[slug] = {"verdict": "named" if named else "noticed" if new else "silent",
                           "violated": len(texts), "new": len(new), "naming": len(named),
                           "example": report_of((named or new or [""])[0])}
            print(slug, cells[slug], flush=True)
    result = {"version": version, "invariants": inferred, "checked_on_correct": looked,
              "correct": {"verdict": "false alarm" if healthy else "clean", "violated": len(healthy)}, "broken": cells}
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    arguments.out.write_text(json.dumps(result, indent=1) + "\n")
    print(json.dumps(result["correct"]), "of", looked, "looked at;", inferred, "inferred")


def report_of(text):
    """The start of an invariant, in its own words."""
    return json.loads(text).get("text_description", text)[:200] if text else ""


if __name__ == "__main__":
    sys.exit(main())
