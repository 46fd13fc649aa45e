"""Runs the script that its argument names, after taking away what TrainCheck 0.2.0 stumbles over where torch was built
with CUDA and there is no driver: it reads every attribute of torch, and one of cufft_plan_cache's starts CUDA, whose
RuntimeError it does not catch."""

import runpy
import sys

import torch

torch.backends.cuda.cufft_plan_cache = None
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
