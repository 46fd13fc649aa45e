"""The C++ part, loaded where it fits this torch."""

from __future__ import annotations

import functools
import importlib
from typing import Any

import torch


class DoesNotFit(RuntimeError):
    """The extension was built for another torch."""


def minor(version: str) -> list[str]:
    return version.split("+")[0].split(".")[:2]


@functools.cache
def extension() -> Any:
    """Throws DoesNotFit, with both versions and what to do, before anything of another torch is loaded."""
    built_for: str = importlib.import_module("lockstep_torch.built_for").TORCH_VERSION
    if minor(built_for) != minor(torch.__version__):
        raise DoesNotFit(f"lockstep-torch was built for torch {built_for}, and this is torch "
                         f"{torch.__version__}. Build it again, in a clone of Lockstep: pip install "
                         "--no-build-isolation --force-reinstall --no-deps ./python")
    return importlib.import_module("lockstep_torch._extension")
