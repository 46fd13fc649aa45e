"""What has been solved: {case: {"best": points, "day": ...}}, in the learner's state folder, of whichever clone."""

import datetime
import json
import os
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "reports" / "html"))
import files  # noqa: E402

VERSION = 1


def file():
    """None where no folder is known."""
    state, home = os.environ.get("XDG_STATE_HOME", ""), os.environ.get("HOME", "")
    if state.startswith("/"):
        return pathlib.Path(state, "lockstep", "detective.json")
    return pathlib.Path(home, ".local", "state", "lockstep", "detective.json") if home else None


def note(text):
    print(f"note: {text}", file=sys.stderr)


class Scores:
    def __init__(self):
        self.cases, self.kept = {}, file() is not None
        try:
            content = json.loads(files.read_text(file())) if self.kept else {"cases": {}}
            self.kept = self.kept and content.get("schema_version", 0) <= VERSION
            self.cases = {name: {"best": int(one["best"]), "day": str(one["day"])}
                          for name, one in content["cases"].items()}
            if not self.kept:
                note("your scores are not kept: they are of a newer Lockstep, or HOME is not set")
        except FileNotFoundError:
            pass
        except (OSError, ValueError, TypeError, KeyError, AttributeError):
            self.cases = {}
            self.put_aside()

    def put_aside(self):
        other = file().with_suffix(".json.unreadable")
        try:
            file().replace(other)
            note(f"your scores could not be read; they are kept as {other}, and begun anew")
        except OSError as error:
            self.kept = False
            note(f"your scores are not kept: {error.strerror}")

    def best(self, name):
        return self.cases[name]["best"] if name in self.cases else None

    def add(self, name, points):
        """True where it is the best so far. The file is whole at any moment."""
        better = self.best(name) is None or points > self.best(name)
        if better:
            self.cases[name] = {"best": points, "day": datetime.date.today().isoformat()}
        if better and self.kept:
            try:
                files.write(file(), json.dumps({"schema_version": VERSION, "cases": self.cases}, indent=1))
            except OSError as error:
                note(f"your score is not kept: {error.filename}: {error.strerror}")
        return better
