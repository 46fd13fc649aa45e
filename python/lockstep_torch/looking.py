"""How objects of the program are looked at without a call of its code: by their types, and by what instances hold. An
object whose class derives from one of Python's own is looked at as one of that."""

from __future__ import annotations

import collections
import sys
import weakref
from collections.abc import Iterator, MutableMapping
from typing import Any

import torch

PLAIN = (torch.Tensor, torch.nn.Parameter)  # of these types a tensor is no more than that


def is_a(value: Any, *kinds: type) -> bool:
    """isinstance() may ask the object for its class."""
    return issubclass(type(value), kinds)


def is_tensor(value: Any) -> bool:
    return is_a(value, torch.Tensor)


def module_of(kind: type) -> str:
    return str(type.__getattribute__(kind, "__module__"))


def attributes(value: Any) -> dict[str, Any]:
    """By name. Nothing of what has slots."""
    try:
        held = object.__getattribute__(value, "__dict__")
    except AttributeError:
        return {}
    return {name: each for name, each in held.items() if type(name) is str} if type(held) is dict else {}


def attribute(value: Any, name: str) -> Any:
    """Its instance's, or what stands in its class; None where there is none. A property is no attribute."""
    held = attributes(value)
    if name in held:
        return held[name]
    of_classes = (type.__getattribute__(kind, "__dict__") for kind in type.__dict__["__mro__"].__get__(type(value)))
    found = next((each[name] for each in of_classes if name in each), None)
    return None if hasattr(type(found), "__get__") else found


def rows_in(value: Any) -> int:
    """How many a list, a tuple, a range or a dict holds; -1 of others."""
    base = next((base for base in (list, tuple, range, dict) if is_a(value, base)), None)
    return -1 if base is None else base.__len__(value)


def is_row(value: Any) -> bool:
    return is_a(value, list, tuple, range)


def row(value: Any, place: int) -> Any:
    """Of a list, a tuple or a range."""
    base: Any = next(base for base in (list, tuple, range) if is_a(value, base))
    return base.__getitem__(value, place)


def items(value: Any) -> list[tuple[Any, Any]]:
    """Of a dict."""
    return list(dict.items(value))


def numpys() -> tuple[type, ...]:
    """Its arrays' and numbers' types, where it is imported."""
    numpy: Any = sys.modules.get("numpy")
    return (numpy.ndarray, numpy.generic) if hasattr(numpy, "generic") else ()


def is_numpys(value: Any) -> bool:
    """An array or a number, of no class of somebody else's."""
    return module_of(type(value)).partition(".")[0] == "numpy" and is_a(value, *numpys())


def is_pandas(value: Any) -> bool:
    return module_of(type(value)).startswith("pandas.") and hasattr(type(value), "iloc")


def members(value: Any) -> list[Any] | None:
    """What a container holds, such as a batch; None of what is none."""
    if is_a(value, collections.UserDict):
        value = attribute(value, "data")
    if is_a(value, dict):
        return list(dict.values(value))
    return [row(value, place) for place in range(rows_in(value))] if is_a(value, list, tuple) else None


def tensors_in(value: Any, deep: int = 8) -> Iterator[Any]:
    if is_a(value, torch.Tensor):
        yield value
    elif deep > 0:
        for each in members(value) or ():
            yield from tensors_in(each, deep - 1)


def parts_of(module: Any) -> Iterator[tuple[str, Any]]:
    """A module and those inside of it, with their names, as named_modules() gives them, which asks for
    their hashes and may be the program's own."""
    seen: set[int] = set()

    def inside(name: str, part: Any) -> Iterator[tuple[str, Any]]:
        if id(part) in seen:
            return
        seen.add(id(part))
        yield name, part
        for each, child in list((attribute(part, "_modules") or {}).items()):
            if child is not None:
                yield from inside(f"{name}.{each}" if name else each, child)
    return inside("", module)


def held_in(module: Any, kind: str) -> list[tuple[str, torch.Tensor]]:
    """Its "_parameters" or "_buffers", as named_parameters() gives them: each once."""
    seen: set[int] = set()
    found: list[tuple[str, torch.Tensor]] = []
    for name, part in parts_of(module):
        for each, tensor in list((attribute(part, kind) or {}).items()):
            if tensor is not None and id(tensor) not in seen:
                seen.add(id(tensor))
                found.append((f"{name}.{each}" if name else each, tensor))
    return found


def parameters_in(module: Any) -> list[tuple[str, torch.Tensor]]:
    return held_in(module, "_parameters")


def of_engine(module: Any) -> list[tuple[str, torch.Tensor]]:
    """The parameters that DistributedDataParallel keeps alike where it wraps this module. It leaves out the names that
    are put here: they are beside the model."""
    ignored = attribute(module, "_ddp_params_and_buffers_to_ignore") or ()
    return [(name, one) for name, one in parameters_in(module) if name not in ignored]


def parameters_of(optimizer: Any) -> list[torch.Tensor]:
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def buffers_in(module: Any) -> list[tuple[str, torch.Tensor]]:
    return held_in(module, "_buffers")


class ByIdentity(MutableMapping[Any, Any]):
    """Its keys are objects of the program's, which may have no hash, or be equal to others. An entry goes with its
    object."""

    def __init__(self) -> None:
        self.held: dict[int, tuple[weakref.ref[Any], Any]] = {}

    def __setitem__(self, key: Any, value: Any) -> None:
        number, held = id(key), self.held

        def gone(reference: weakref.ref[Any]) -> None:
            if number in held and held[number][0] is reference:
                del held[number]
        known = held[number][0] if key in self else weakref.ref(key, gone)
        held[number] = known, value

    def __getitem__(self, key: Any) -> Any:
        reference, value = self.held[id(key)]
        if reference() is not key:
            raise KeyError(id(key))
        return value

    def __delitem__(self, key: Any) -> None:
        self[key]
        del self.held[id(key)]

    def __iter__(self) -> Iterator[Any]:
        return (key for reference, _value in list(self.held.values()) if (key := reference()) is not None)

    def __len__(self) -> int:
        return len(self.held)
