"""Asks a Python program's oracle, in a process of its own, for it needs torch. Prints {what must be so: whether it is}.

usage: oracle.py PROGRAM EXIT_CODE NOTES
"""

import json
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "python"))
from truths import judged

program, code, notes = sys.argv[1:]
print(json.dumps(judged(program, int(code), notes)))
