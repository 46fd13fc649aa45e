"""Writes the fuzzer's starting inputs into tests/fuzz/corpus: small files and pickles of torch.save, and
hostile ones. Run it again when the format that is read changes.

usage: python tests/fuzz/make_corpus.py      (a Python with torch)
"""

import collections
import io
import os
import struct
import zipfile

import torch

FOLDER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "corpus")


def text(value):
    return b"X" + struct.pack("<I", len(value)) + value.encode()


def saved(value):
    stream = io.BytesIO()
    torch.save(value, stream)
    return stream.getvalue()


def pickle_of(file):
    with zipfile.ZipFile(io.BytesIO(file)) as archive:
        return archive.read(next(name for name in archive.namelist() if name.endswith("/data.pkl")))


def good():
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.BatchNorm1d(2))
    net(torch.rand(4, 2)).sum().backward()
    for name in ("SGD", "AdamW"):
        extra = {"momentum": 0.9} if name == "SGD" else {}
        optimizer = getattr(torch.optim, name)(net.parameters(), lr=0.1, **extra)
        schedule = torch.optim.lr_scheduler.MultiStepLR(optimizer, [1, 2])
        optimizer.step()
        yield name.lower(), saved({"model": net.state_dict(), "optimizer": optimizer.state_dict(),
                                   "schedule": schedule.state_dict(), "epoch": 3})
    base = torch.arange(12).reshape(3, 4)
    yield "tensors", saved([base, base.t(), base[1], torch.tensor(2.5), torch.empty(0), torch.ones(1).expand(3),
                            base.to(torch.bfloat16), base.to(torch.uint16), torch.nn.Parameter(torch.rand(2))])
    yield "values", saved({"n": None, "b": [True, False], "i": [1, 300, -1, 70000, 2**40, -2**63], "f": 0.5,
                           "t": ((), (1,), (1, 2), (1, 2, 3), (1, 2, 3, 4)), "s": "caf\u00e9", 7: {},
                           "o": collections.OrderedDict(a=1), "z": torch.Size([2])})


def bad():
    head = b"\x80\x02"
    yield "system", head + b"cos\nsystem\n" + text("true") + b"\x85R."
    yield "build_on_list", head + b"]}b."
    yield "list_in_itself", head + b"]q\0h\0a."
    bomb = b"]q\0"
    for level in range(1, 10):
        bomb += b"](" + bytes((ord("h"), level - 1)) * 10 + b"eq" + bytes((level,))
    yield "bomb", head + bomb + b"."
    deep = b"]" * 200 + b"a" * 199
    yield "deep", head + deep + b"."
    yield "long_text", head + b"X\xff\xff\xff\xff."
    yield "no_end", head + b"}("
    tensor = (b"ctorch._utils\n_rebuild_tensor_v2\n((" + text("storage") + b"ctorch\nFloatStorage\n" + text("0")
              + text("cpu") + b"K\x04tQK%c(K\x02t(K%ctK\x01NtR.")
    yield "tensor_flag", head + tensor % (0, 1)
    tensor = tensor.replace(b"K\x01NtR", b"\x89NtR")
    yield "tensor_offset", head + tensor % (3, 1)
    yield "tensor_stride", head + tensor % (0, 9)
    yield "cut", saved([1, 2, torch.ones(2)])[:-30]
    whole = bytearray(saved([1, 2, torch.ones(2)]))
    whole[whole.index(b"\x80\x3f")] ^= 1
    yield "changed", bytes(whole)


def main():
    os.makedirs(FOLDER, exist_ok=True)

    def write(name, content):
        with open(os.path.join(FOLDER, name), "wb") as file:
            file.write(content)

    for name, content in good():
        write(f"good_{name}.pt", content)
        write(f"good_{name}.pkl", pickle_of(content))
    for name, content in bad():
        write(f"bad_{name}", content)


if __name__ == "__main__":
    main()
