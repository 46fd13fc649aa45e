"""Loaders, data sets, samplers and batches that are no plain ones."""

import contextlib
import gc
import os
import threading
import warnings
import weakref

import torch
from torch.utils.data import BatchSampler, DataLoader, Dataset, IterableDataset, RandomSampler, Sampler, TensorDataset
from torch.utils.data import get_worker_info as worker
from usual import mlp, quick, sgd, show, started


class Numbers(Dataset):
    def __init__(self, size=16):
        self.rows = torch.randn(size, 6, generator=torch.Generator().manual_seed(5))

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, index):
        return self.rows[index]


def fit(loader, take=lambda given: given, passes=2, model=None):
    model = model or mlp()
    optimizer = sgd(model)
    for _ in range(passes):
        for given in loader:
            optimizer.zero_grad()
            loss = model(take(given)).pow(2).mean()
            loss.backward()
            optimizer.step()
            show(loss)
    return model


def shuffled(data, **options):
    return DataLoader(data, batch_size=4, shuffle=True, generator=torch.Generator().manual_seed(1), **options)


def named(number):
    torch.manual_seed(number)
    return number


def workers():
    """Two forked workers, in each pass anew."""
    fit(shuffled(Numbers(), num_workers=2, worker_init_fn=named, prefetch_factor=3))


def spawned_workers():
    """Spawned workers that stay."""
    fit(shuffled(Numbers(), num_workers=2, persistent_workers=True, multiprocessing_context="spawn"))


def workers_of_a_server():
    """Workers of a forkserver, with a timeout."""
    fit(shuffled(Numbers(), num_workers=1, multiprocessing_context="forkserver", timeout=60), passes=1)


class Stream(IterableDataset):
    def __iter__(self):
        info = worker()
        number, of = (info.id, info.num_workers) if info else (0, 1)
        rows = Numbers().rows
        for place in range(number, len(rows), of):
            yield {"inputs": rows[place], "names": f"row {place}"}


def streams():
    """An IterableDataset, alone, with workers, and with a length that is a guess."""
    class Guesses(Stream):
        def __len__(self):
            return 1_000
    for data in (Stream(), Guesses()):
        fit(DataLoader(data, batch_size=4), take=lambda given: given["inputs"])
    fit(DataLoader(Stream(), batch_size=4, num_workers=2), take=lambda given: given["inputs"])


def data_set_that_counts():
    """Whoever asks the data set for an attribute, an item, its length or its text is counted."""
    calls = {}

    def count(name):
        calls[name] = calls.get(name, 0) + 1

    class Counts(Numbers):
        def __getattribute__(self, name):
            count(f"attribute {name}")
            return super().__getattribute__(name)

        def __getitem__(self, index):
            count("item")
            return super().__getitem__(index)

        def __len__(self):
            count("length")
            return super().__len__()

        def __repr__(self):
            count("text")
            return "Counts"

        def __eq__(self, other):
            count("equal")
            return self is other

        __hash__ = Dataset.__hash__
    fit(shuffled(Counts()), passes=3)
    show(sorted(calls.items()))


@quick()
def data_set_that_holds_objects():
    """It holds objects whose __repr__, __iter__, __len__, __eq__ and __float__ must not be called."""
    class Touchy:
        def refuse(self, *_arguments):
            raise SystemExit("the program's method was called")
        __repr__ = __str__ = __iter__ = __len__ = __eq__ = __float__ = __bool__ = __getstate__ = refuse
        __hash__ = object.__hash__

    class Holds(Numbers):
        def __init__(self):
            super().__init__()
            self.one, self.several, self.named = Touchy(), [Touchy()] * 3, {"a": Touchy(), Touchy(): 1}
            self.number = type("Own", (float,), {"__repr__": Touchy.refuse})(3.0)
            self.text = type("Text", (str,), {"__repr__": Touchy.refuse, "encode": Touchy.refuse})("text")
            self.listed = type("List", (list,), {"__iter__": Touchy.refuse, "__len__": Touchy.refuse})([1, 2])
    fit(shuffled(Holds()))


class Seen(torch.Tensor):
    functions = 0

    @classmethod
    def __torch_function__(cls, function, types, arguments=(), options=None):
        cls.functions += 1
        return super().__torch_function__(function, types, arguments, options or {})


def data_set_of_counted_tensors():
    """Its tensors are of a class that counts what is done with them."""
    class Holds(Numbers):
        def __init__(self):
            super().__init__()
            self.labels = torch.ones(16).as_subclass(Seen)
    before = Seen.functions
    fit(shuffled(Holds()), passes=3)
    show(Seen.functions - before)


def data_set_with_properties():
    """Properties that open files, raise or end the program if they are read."""
    class Opens(Numbers):
        @property
        def epoch(self):
            raise SystemExit("a property was read")

        @property
        def names(self):
            open("opened", "w").close()
    fit(shuffled(Opens()))


def data_set_that_hands_on():
    """A data set whose __getattr__ hands on to another one, and one without __dict__."""
    class Hands:
        def __init__(self, inner):
            self.inner = inner

        def __getattr__(self, name):
            return getattr(self.inner, name)

        def __getitem__(self, index):
            return self.inner[index]

        def __len__(self):
            return len(self.inner)

    class Bare:
        __slots__ = ("rows",)

        def __len__(self):
            return 16

        def __getitem__(self, index):
            return self.rows[index]
    bare = Bare()
    bare.rows = Numbers().rows
    fit(shuffled(Hands(Numbers())))
    fit(shuffled(bare))


def data_set_whose_length_changes():
    """It grows while it is read, and its length raises now and then."""
    class Grows(Numbers):
        asked = 0

        def __len__(self):
            Grows.asked += 1
            return 8 + 4 * (Grows.asked > 5)
    fit(DataLoader(Grows(), batch_size=4), passes=3)
    show(Grows.asked)


def data_set_that_lists():
    """A list, a dict with numbers as keys, a numpy array, and a memory-mapped one."""
    import numpy
    rows = Numbers().rows
    array = numpy.memmap("mapped", dtype="float32", mode="w+", shape=(16, 6))
    array[:] = rows.numpy()
    for data in (list(rows), dict(enumerate(rows)), rows.numpy(), array):
        fit(shuffled(data))


def batches_of_batches():
    """__getitems__, and no automatic batches."""
    class Many(Numbers):
        def __getitems__(self, indices):
            return [self.rows[index] for index in indices]
    fit(shuffled(Many()))
    fit(DataLoader(Numbers(), batch_size=None), passes=1)
    fit(DataLoader(Numbers(), batch_size=None, sampler=BatchSampler(RandomSampler(
        Numbers(), generator=torch.Generator().manual_seed(1)), 4, False)), passes=1)


def odd_samplers():
    """A sampler of tuples, of texts, of tensors, without a length, and one that never ends."""
    rows = Numbers().rows

    class Odd(Sampler):
        def __init__(self, items):
            self.items = items

        def __iter__(self):
            return iter(self.items)

    class Any(Dataset):
        def __getitem__(self, key):
            place = key[1] if isinstance(key, tuple) else len(key) if isinstance(key, str) else int(key)
            return rows[place]

        def __len__(self):
            return 16
    for items in ([("a", 1), ("b", 2)] * 4, ["row", "rows"] * 4, [torch.tensor(each) for each in range(8)],
                  [True, False] * 4, list(range(8))):
        fit(DataLoader(Any(), batch_size=4, sampler=Odd(items)))

    def endless():
        while True:
            yield 3
    model = mlp()
    optimizer = sgd(model)
    for number, inputs in enumerate(DataLoader(Any(), batch_size=4, sampler=endless())):
        if number == 4:
            break
        optimizer.zero_grad()
        model(inputs).sum().backward()
        optimizer.step()


class Bundle:
    """A batch that is an object of the program's."""

    def __init__(self, rows):
        self.inputs = torch.stack(rows)

    def pin_memory(self):
        return self

    def __len__(self):
        raise AssertionError("asked for its length")

    def __iter__(self):
        raise AssertionError("gone through")


def batches_that_are_objects():
    """collate_fn returns an object, None, or a generator."""
    fit(shuffled(Numbers(), collate_fn=Bundle), take=lambda given: given.inputs)
    fit(shuffled(Numbers(), collate_fn=lambda rows: (each for each in rows)),
        take=lambda given: torch.stack(list(given)))
    fit(shuffled(Numbers(), collate_fn=lambda rows: {"deep": [{"inputs": torch.stack(rows)}, None, "text", {1, 2}]}),
        take=lambda given: given["deep"][0]["inputs"])


def several_at_once():
    """Two passes over one loader in step, and one that is broken off, and a second loader inside."""
    loader, inner = shuffled(Numbers()), shuffled(Numbers(8))
    model = mlp()
    optimizer = sgd(model)
    for one, other in zip(loader, iter(loader), strict=True):
        optimizer.zero_grad()
        (model(one) - model(other)).pow(2).mean().backward()
        optimizer.step()
        with torch.no_grad():
            show(sum(model(each).sum() for each in inner))
    for number, _ in enumerate(loader):
        if number == 2:
            break
    iterator = iter(loader)
    next(iterator)
    seen = weakref.ref(iterator)
    del iterator
    gc.collect()
    show(seen() is None)


def bad_samples():
    """A data set that raises at some samples, which the program leaves out; with workers that ends the pass."""
    class Bad(Numbers):
        def __getitem__(self, index):
            if index == 5:
                raise KeyError("this one is broken")
            return super().__getitem__(index)
    iterator = iter(DataLoader(Bad(), batch_size=2))
    model = mlp()
    optimizer = sgd(model)
    while True:
        try:
            inputs = next(iterator)
        except StopIteration:
            break
        except KeyError as error:
            show(repr(error))
            continue
        optimizer.zero_grad()
        model(inputs).sum().backward()
        optimizer.step()
        show(*model.parameters())
    try:
        fit(DataLoader(Bad(), batch_size=2, num_workers=1))
    except KeyError as error:
        show("Original Traceback" in str(error))


def a_worker_dies():
    """A worker is killed, and the program goes on without workers."""
    class Dies(Numbers):
        def __getitem__(self, index):
            if worker() is not None:
                os._exit(3)
            return super().__getitem__(index)
    with contextlib.suppress(RuntimeError, OSError):
        fit(DataLoader(Dies(), batch_size=2, num_workers=1), passes=1)
    fit(DataLoader(Dies(), batch_size=4), passes=1)


def read_ahead():
    """A thread of the program's draws batches ahead into a queue, and the main one trains."""
    import queue
    ready = queue.Queue(2)

    def draw():
        for each in shuffled(Numbers()):
            ready.put(each)
        ready.put(None)
    thread = threading.Thread(target=draw)
    thread.start()
    fit(iter(ready.get, None), passes=1)
    thread.join()


def own_loader():
    """A subclass of DataLoader with its own __iter__ and __len__."""
    class Doubles(DataLoader):
        def __iter__(self):
            for each in super().__iter__():
                yield each * 2

        def __len__(self):
            return 2 * super().__len__()
    fit(Doubles(Numbers(), batch_size=4))


def exact_draws():
    """The numbers of generators while loaders run; a loader draws one seed a pass."""
    loader = DataLoader(Numbers(), batch_size=4, shuffle=True)
    for _ in range(3):
        fit(loader, passes=1)
        show(torch.rand(1))


def finalized_data():
    """A data set with __del__, which is freed with its loader."""
    class Says(Numbers):
        def __del__(self):
            print("the data set is gone", flush=True)
    loader = DataLoader(Says(), batch_size=4)
    fit(loader)
    del loader
    gc.collect()
    show("the program goes on")


def big_ones():
    """A data set of a million samples of no memory, of which a few are read."""
    data = TensorDataset(torch.zeros(1).expand(1_000_000, 6), torch.arange(1_000_000))
    iterator = iter(DataLoader(data, batch_size=4, sampler=range(0, 1_000_000, 50_000)))
    fit(iterator, take=lambda given: given[0] + given[1][:, None] * 1e-6, passes=1)


@started(variables={"PYTHONWARNINGS": "ignore"})
def nested_batches():
    """Batches of jagged, sparse and quantized tensors."""
    for collate in (lambda rows: torch.nested.as_nested_tensor(rows, layout=torch.jagged),
                    lambda rows: torch.stack(rows).to_sparse(),
                    lambda rows: torch.quantize_per_tensor(torch.stack(rows), 0.1, 0, torch.qint8)):
        def take(given):
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                if given.is_nested:
                    return given.values().reshape(-1, 6)
                return given.dequantize() if given.is_quantized else given.to_dense()
        fit(shuffled(Numbers(), collate_fn=collate), take=take)
