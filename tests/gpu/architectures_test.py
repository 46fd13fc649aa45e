"""Each object holds machine code for every architecture that was asked for, and PTX of the last one.

architectures_test.py CUOBJDUMP "75;80;..." OBJECT...
"""
import re
import subprocess
import sys


def held(cuobjdump, kind, file):
    done = subprocess.run([cuobjdump, f"--list-{kind}", file], capture_output=True, text=True, timeout=30, check=True)
    return re.findall(r"\.sm_(\d+)\.", done.stdout)


def main(cuobjdump, architectures, *objects):
    if not cuobjdump:
        print("skipped: there is no cuobjdump, neither the toolkit's nor triton's")
        return 77
    wanted = architectures.split(";")
    if not wanted[0] or not objects:
        print(f"nothing to look at: architectures {wanted}, objects {objects}")
        return 1
    wrong = 0
    for file in objects:
        for kind, expected in (("elf", wanted), ("ptx", wanted[-1:])):
            found = held(cuobjdump, kind, file)
            if sorted(found) != sorted(expected):
                print(f"{file} holds {kind} of {found}, and {expected} was asked for")
                wrong += 1
    print(f"{len(objects)} objects, architectures {architectures}: {wrong} wrong")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
