"""What a run of a program came to, by the program's oracle and by Lockstep's detectors; as JSON, in a process of its own,
whose seeds may be others.

usage: judge.py PROGRAM CODE NOTES TRACES      CODE: the job's exit code; PROGRAM: whose oracle it is
"""

import json
import pathlib
import sys

import lockstep_torch
from programs import judged

program, code, notes, traces = sys.argv[1:]
is_recorded = any(pathlib.Path(traces).rglob("*.trace"))  # else no rank came as far
found = lockstep_torch.diagnose(pathlib.Path(traces)) if is_recorded else {"findings": [], "detectors": {}}
print(json.dumps({"seen": judged(program, int(code), notes), "findings": found["findings"], "detectors": found["detectors"]}))
