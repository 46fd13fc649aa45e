"""The C++ part, loaded where it fits this torch."""

from __future__ import annotations

from typing import Any

import torch


class DoesNotFit(RuntimeError):
    """The extension was built for another torch."""


def minor(version: str) -> list[str]:
    return version.split("+")[0].split(".")[:2]


def extension() -> Any:
    """Throws DoesNotFit, with both versions and what to do, before anything of another torch is loaded."""
    from lockstep_torch import built_for
    if minor(built_for.TORCH_VERSION) != minor(torch.__version__):
        raise DoesNotFit(f"lockstep-torch was built for torch {built_for.TORCH_VERSION}, and this is torch "
                         f"{torch.__version__}. Build it again: pip install --no-build-isolation --force-reinstall "
                         "--no-deps ./python")
    from lockstep_torch import _extension
    return _extension
