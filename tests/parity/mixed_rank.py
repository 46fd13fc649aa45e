"""A rank of a mixed job, under torchrun: odd ranks become the C++ program, the others stay Python.

usage: mixed_rank.py PROGRAM OUT WORLD:CASE ...
"""

import os
import sys

program, out, *specs = sys.argv[1:]
if int(os.environ["RANK"]) % 2 == 1:
    os.execv(program, [program, out, "env://", "-1", *specs])

import ddp_parity

ddp_parity.main(out, "env://", -1, specs)
