"""Packs recorded runs for authors of other checkers: python3 reports/corpus/make.py OUT.tar.xz FOLDER ...

FOLDER holds runs as `./lockstep run all --trace FOLDER --reports FOLDER` leaves them: FOLDER/05_set_epoch/correct/ with
traces and their truth.json, and the lesson's report with the oracles' figures, FOLDER/05_set_epoch.json. Packed are the
traces, cut to their committed length, the label and the oracle's verdict, and nothing else of the run; README.md says
what is where. The same runs make the same archive. It must stay under 20 MB.
"""

import hashlib
import io
import json
import lzma
import pathlib
import re
import struct
import sys
import tarfile

HERE = pathlib.Path(__file__).resolve().parent
CORPUS_VERSION = 2
TRACE_VERSION = 1
LIMIT = 20 * 1000 * 1000
HEAD = 4096  # of a trace: common/lockstep/trace/trace.md


class CorpusError(Exception):
    pass


def committed(file):
    """The whole records of a trace: a writer that was killed may leave more."""
    data = file.read_bytes()
    if len(data) < HEAD or data[:8] != b"LKSTRACE":
        raise CorpusError(f"{file}: not a trace")
    version, _, _, world_size = struct.unpack_from("<IIii", data, 8)
    (length,) = struct.unpack_from("<Q", data, 64)
    if version != TRACE_VERSION:
        raise CorpusError(f"{file}: trace version {version}; this script packs version {TRACE_VERSION}")
    if not HEAD <= length <= len(data):
        raise CorpusError(f"{file}: it says it holds {length} bytes; the file has {len(data)}")
    return data[:length], world_size


def verdict(folder):
    """What the oracles measured of a run, from its lesson's report."""
    report = folder.parent.parent / f"{folder.parent.name}.json"
    if not report.exists():
        raise CorpusError(f"{report} is not there; record with --reports {folder.parent.parent}")
    for variant in json.loads(report.read_text(encoding="utf-8"))["variants"]:
        if variant["name"] == folder.name:
            return {"outcome": variant["outcome"], "oracles": variant["oracles"]}
    raise CorpusError(f"{report} has no variant {folder.name}; record all variants of the lesson with one command")


def as_bytes(value):
    return (json.dumps(value, indent=1, sort_keys=True) + "\n").encode()


def case_files(folder):
    """(folder in the corpus, {name: bytes}, its line of the manifest) of one run."""
    truth = json.loads((folder / "truth.json").read_text(encoding="utf-8"))
    place = "cases/" + re.sub(r"[^A-Za-z0-9_/.-]+", "_", truth["name"]).strip("_")
    files, world_size = {}, None
    for file in sorted(folder.rglob("*.trace")):
        files[str(file.relative_to(folder))], world_size = committed(file)
    if not files:
        raise CorpusError(f"{folder}: a truth.json and no trace")
    files["truth.json"] = as_bytes(truth)
    files["oracle.json"] = as_bytes(verdict(folder))
    return place, files, {"name": truth["name"], "folder": place, "world_size": world_size,
                          "names": truth.get("names", [])}


def contents(folders):
    """{path: bytes} of the corpus."""
    everything, cases = {}, []
    for folder in sorted(path.parent for top in folders for path in top.rglob("truth.json")):
        place, files, line = case_files(folder)
        if any(line["folder"] == other["folder"] for other in cases):
            raise CorpusError(f"two runs are called {line['name']}")
        cases.append(line)
        everything.update({f"{place}/{name}": data for name, data in files.items()})
    if not cases:
        raise CorpusError("no truth.json in or below " + ", ".join(map(str, folders)))
    for name in ("README.md", "example_checker.py"):
        everything[name] = (HERE / name).read_bytes()
    everything["manifest.json"] = as_bytes({"corpus_version": CORPUS_VERSION, "trace_version": TRACE_VERSION,
                                            "cases": sorted(cases, key=lambda case: case["name"])})
    sums = "".join(f"{hashlib.sha256(data).hexdigest()}  {path}\n" for path, data in sorted(everything.items()))
    everything["SHA256SUMS"] = sums.encode()
    return everything


def pack(out, everything):
    """Nothing of this machine, and no time, goes into the archive."""
    top = f"lockstep-corpus-{CORPUS_VERSION}"
    with lzma.open(out, "wb", preset=9) as packed, tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for path, data in sorted(everything.items()):
            entry = tarfile.TarInfo(f"{top}/{path}")
            entry.size = len(data)
            tar.addfile(entry, io.BytesIO(data))


def main(arguments):
    if len(arguments) < 2 or arguments[0].startswith("-"):
        print(__doc__, file=sys.stderr)
        return 2
    out, folders = pathlib.Path(arguments[0]), [pathlib.Path(folder) for folder in arguments[1:]]
    try:
        everything = contents(folders)
    except (CorpusError, OSError, KeyError, json.JSONDecodeError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 3
    unfinished = out.with_name(out.name + ".new")
    pack(unfinished, everything)
    size = unfinished.stat().st_size
    cases = sum(path.endswith("/truth.json") for path in everything)
    print(f"{cases} cases, {sum(map(len, everything.values())) / 1e6:.1f} MB, packed {size / 1e6:.2f} MB")
    if size > LIMIT:
        unfinished.unlink()
        print(f"error: more than {LIMIT / 1e6:.0f} MB; pack fewer settings", file=sys.stderr)
        return 1
    unfinished.replace(out)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
