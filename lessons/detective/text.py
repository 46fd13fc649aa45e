"""How evidence is written: in lines of 80 columns."""

import itertools
import math
import textwrap

COLUMNS = 80


def number(value, digits=4):
    if value is None:
        return "nan"
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return f"{value:.{digits}g}"


def ranks(list_of, word="rank"):
    """`rank 2`, `ranks 0 and 1`, `ranks 0, 1 and 2`"""
    names = [str(rank) for rank in sorted(list_of)]
    if len(names) == 1:
        return f"{word} {names[0]}"
    return f"{word}s {', '.join(names[:-1])} and {names[-1]}"


def filled(text, indent="", first=None):
    return textwrap.wrap(text, COLUMNS, initial_indent=indent if first is None else first, subsequent_indent=indent,
                         break_long_words=False, break_on_hyphens=False)


def fitting(lines):
    """Those that are too long are filled."""
    return [part for line in lines for part in (filled(line, "          ", "") if len(line) > COLUMNS else [line])]


def table(head, rows, indent="  "):
    """Columns to the right, but the first one."""
    cells = [[str(cell) for cell in row] for row in ([head] if head else []) + rows]
    widths = [max(len(row[column]) for row in cells) for column in range(len(cells[0]))]
    lines = []
    for row in cells:
        others = [cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True)]
        lines.append((indent + "  ".join([row[0].ljust(widths[0]), *others])).rstrip())
    return lines


def by_rank(said, word):
    """Lines of {rank: text}: ranks that have the same to say share one."""
    shared = {}
    for rank, each in said.items():
        shared.setdefault(each, []).append(rank)
    return [line for each, own in shared.items() for line in filled(f"{ranks(own, word)}: {each}", "    ", "  ")]


def runs(items):
    """`A in steps 0 to 3, B in step 4` of [(step, value)]"""
    said = []
    for value, same in itertools.groupby(items, key=lambda item: item[1]):
        steps = [step for step, _ in same]
        said.append(f"{value} in step {steps[0]}" if len(steps) == 1 else f"{value} in steps {steps[0]} to {steps[-1]}")
    return ", ".join("..." if each is None else each for each in some(said, 6, 4))


def some(items, first=3, last=2):
    """The first and the last of them: None where some are left out."""
    items = list(items)
    return items if len(items) <= first + last + 1 else [*items[:first], None, *items[len(items) - last:]]


class Letters:
    """A letter for each value that is not the same as one before: A, ... Z, AA, ... Hashes are compared, never read."""

    def __init__(self):
        self.known = {}

    def of(self, value):
        at = self.known.setdefault(value, len(self.known))
        return (chr(ord("A") + at // 26 - 1) if at >= 26 else "") + chr(ord("A") + at % 26)
