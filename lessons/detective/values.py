"""A rank's tensors by what was recorded of them: a hash, a norm, and four projections of each. Projections are linear:
they can be added, and their squares have the squared norm as mean."""

import math

SAME = 1e-3  # of two vectors, relative: rounding only


def norm(values):
    return math.sqrt(sum((value["norm"] or 0.0) ** 2 for value in values))


def projections(values):
    """None where one of them is not finite; a tensor without a gradient counts as zeros."""
    flat = [number for value in values for number in (value["sketch"] or [0.0] * 4)]
    return None if None in flat else flat


def length(flat):
    return math.sqrt(sum(number * number for number in flat) / 4)


def mean(vectors):
    return [sum(numbers) / len(vectors) for numbers in zip(*vectors, strict=True)]


def apart(one, other):
    """How far, relative to the longer."""
    longest = max(length(one), length(other))
    return length([a - b for a, b in zip(one, other, strict=True)]) / longest if longest else 0.0


def times(vector, of):
    """(by which number `of` comes nearest to `vector`, how far it is then, relative)"""
    square = sum(number * number for number in of)
    factor = sum(a * b for a, b in zip(vector, of, strict=True)) / square if square else 0.0
    return factor, apart(vector, [factor * number for number in of])


def spread(by_rank):
    """How far the ranks' tensors are from rank 0's at most: 0 = equal, None = not finite, or of other shapes."""
    hashes = [[value["hash"] for value in values] for values in by_rank]
    if all(each == hashes[0] for each in hashes):
        return 0.0
    flat = [projections(values) for values in by_rank]
    if None in flat or len({len(each) for each in flat}) > 1:
        return None
    return max(apart(flat[0], each) for each in flat)
