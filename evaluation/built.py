"""The detectors of a build, for scripts that keep what they scored. Standard library only."""

import hashlib
import json
import subprocess

KEY_LENGTH = 12  # of 64 hexadecimal digits


def key(build):
    """Which detectors: a hash of lockstep-course in this build folder. What one build scored is no other's score."""
    return hashlib.sha256((build / "lockstep-course").read_bytes()).hexdigest()[:KEY_LENGTH]


def score(build, folder, file, *options, timeout=1800):
    """The matrix of `lockstep-course matrix` on a folder. It writes `file` once every case is read, whatever they
    are worth; what could not be read is a RuntimeError."""
    file.unlink(missing_ok=True)
    done = subprocess.run([build / "lockstep-course", "matrix", folder, "--json", file, *options],
                          stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=timeout)
    if not file.exists():
        raise RuntimeError(f"{folder} could not be scored (exit code {done.returncode}): {done.stderr[-2000:]}")
    return json.loads(file.read_text(encoding="utf-8"))
