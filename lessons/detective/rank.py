"""Starts one rank of a Python job: what it prints goes to files of its own.

usage: rank.py FOLDER PROGRAM [ARGUMENT ...]
"""

import os
import sys

folder, *program = sys.argv[1:]
for descriptor, ending in ((1, "out"), (2, "err")):
    file = os.open(f"{folder}/rank_{os.environ['RANK']}.{ending}", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(file, descriptor)
os.execv(sys.executable, [sys.executable, *program])
