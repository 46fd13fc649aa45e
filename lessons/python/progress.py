"""What somebody has done of the course, in the file that ./lockstep list reads (common/lockstep/course/progress.h)."""

import contextlib
import ctypes
import datetime
import fcntl
import json
import os
import pathlib
import sys

from programs import files

VERSION = 1


def file():
    """None where neither XDG_STATE_HOME nor HOME is set."""
    state, home = os.environ.get("XDG_STATE_HOME", ""), os.environ.get("HOME", "")
    if state.startswith("/"):
        return pathlib.Path(state, "lockstep", "progress.json")
    return pathlib.Path(home, ".local", "state", "lockstep", "progress.json") if home else None


def today():
    return datetime.date.today().isoformat()


def note(text):
    print(f"note: {text}", file=sys.stderr)


def hash_of_sources(lesson):
    """As hash_of_sources() of progress.cpp: the libxxhash that is here has the same hashes as the one that it includes."""
    hash_with_seed = ctypes.CDLL("libxxhash.so.0").XXH3_64bits_withSeed
    hash_with_seed.restype = ctypes.c_uint64
    hash_with_seed.argtypes = [ctypes.c_char_p, ctypes.c_size_t, ctypes.c_uint64]
    value = 0
    for source in sorted(path for path in lesson.iterdir() if path.suffix in (".cpp", ".h")):
        for part in (source.name.encode(), source.read_bytes()):
            value = hash_with_seed(part, len(part), value)
    return f"{value:016x}"


@contextlib.contextmanager
def locked(beside):
    beside.parent.mkdir(parents=True, exist_ok=True)
    with open(os.open(f"{beside}.lock", os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o644), "wb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def read(kept):
    """The whole file. One that cannot be read is put aside; None where it is of a newer Lockstep."""
    if not kept.exists():
        return {"schema_version": VERSION, "lessons": {}}
    try:
        content = json.loads(files.read_text(kept))
        if content["schema_version"] > VERSION:
            note(f"{kept} is of a newer Lockstep: it is left as it is, and nothing is recorded")
            return None
        for entry in content["lessons"].values():
            if not isinstance(entry["sources"], str):
                raise TypeError
        return content
    except (ValueError, TypeError, KeyError, AttributeError):
        number = next(n for n in range(1, 1000) if not pathlib.Path(f"{kept}.unreadable-{n}").exists())
        other = kept.rename(f"{kept}.unreadable-{number}")
        note(f"your progress could not be read; it is kept as {other}, and begun anew")
        return {"schema_version": VERSION, "lessons": {}}


def change(lesson, apply):
    """Changes one lesson's entry, which is empty where its sources are others by now, and returns it. Where nothing can be
    kept there is a word on stderr, and no exception. `apply` may be called twice, on different entries."""
    try:
        kept = file()
        if kept is None:
            raise OSError("neither HOME nor XDG_STATE_HOME is set")
        sources = hash_of_sources(lesson)
        with locked(kept):
            content = read(kept)
            before = content["lessons"].get(lesson.name, {}) if content else {}
            done = changed(before if before.get("sources") == sources else {}, apply)
            if content:
                content["lessons"][lesson.name] = {**done, "sources": sources}
                files.write(kept, json.dumps(content, indent=1, sort_keys=True, ensure_ascii=False) + "\n")
        return done
    except OSError as error:
        note(f"your progress is not kept: {f'{error.filename}: {error.strerror}' if error.filename else error}")
        return changed({}, apply)


def changed(entry, apply):
    done = {"ran": "", "passed": "", "hints": {}, "mended": {}, **entry}
    apply(done)
    return done
