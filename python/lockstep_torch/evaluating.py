"""What the model is given where it is evaluated, so that ranks can be told apart that each evaluate a share."""

from __future__ import annotations

from typing import Any

import torch

from lockstep_torch import calls, looking, parallel, samples
from lockstep_torch.extension import extension
from lockstep_torch.recording import Recording, listens

MOST = 16  # forwards of one evaluation that are told
WITH_ROWS = 4  # evaluations, of which the rows are told, too
MOST_EVALUATIONS = 64  # a program may look in each step; and a device is waited for


@listens("evaluations")
def looks(here: Recording, module: Any, inputs: Any, named: dict[str, Any]) -> None:
    """A forward of the model without gradients."""
    if torch.is_grad_enabled() or here.looks >= MOST:
        return
    here.evaluations += here.looks == 0
    if here.evaluations > MOST_EVALUATIONS:
        return
    here.looks += 1
    given = parallel.readable_tensors(looking.tensors_in((inputs, named)))
    count, content = samples.given(given)
    if count:
        if not module.training and not here.in_engine and (model := here.models.get(module)) is not None:
            here.rank.evaluates(model)
        here.rank.evaluation_input(count, content)
        if here.evaluations <= WITH_ROWS:
            here.rank.evaluation_rows(extension().some_rows(given))


def hook(here: Recording, module: torch.nn.Module) -> None:
    if looks not in here.heard.get(module, []):
        calls.listen(here, module, looks)
