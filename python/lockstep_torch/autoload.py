"""What `import torch` calls at its end, in every process of an environment that has this package: it does nothing
unless LOCKSTEP_TRACE or LOCKSTEP_PROVE is set, and nothing that goes wrong here reaches the program."""

import os


def load() -> None:
    for variable, does in (("LOCKSTEP_PROVE", prove), ("LOCKSTEP_TRACE", record)):
        if value := os.environ.get(variable):
            try:
                does(value)
            except Exception as error:  # noqa: BLE001 whatever it is, the program goes on
                from lockstep_torch import inside
                inside.say("lockstep: this process is not recorded: ", error)


def record(folder: str) -> None:
    from lockstep_torch import hooks
    hooks.watch(folder)


def prove(plan: str) -> None:
    from lockstep_torch.proving import rank
    rank.begin(plan)
