"""lockstep prove: a program beside its own derivative, its own single process and its own restart.

In the command's process: `command` plans the runs and says what they show; `job` makes each run in a copy of the
working folder. In each rank: `rank` is called at the end of `import torch`, and changes what the plan says."""
