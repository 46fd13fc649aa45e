"""What `import torch` calls at its end, in every process of an environment that has this package: it does nothing
unless LOCKSTEP_TRACE is set, and nothing that goes wrong here reaches the program."""

import os


def load() -> None:
    if not os.environ.get("LOCKSTEP_TRACE"):
        return
    try:
        from lockstep_torch import hooks
        hooks.watch(os.environ["LOCKSTEP_TRACE"])
    except Exception as error:  # noqa: BLE001 whatever it is, the program goes on
        from lockstep_torch import inside
        inside.say("lockstep: this process is not recorded: ", error)
