"""What the learner types as an answer, and what is to be said of it."""

import difflib
import re


class NotUnderstood(Exception):
    """Costs nothing."""


def ranks_of(words, world_size, word):
    """`all`, `1`, `0,2`, `0 2`, `0-2`; None of no word."""
    said = " ".join(words).replace(",", " ").replace("and", " ").removeprefix(word + "s").removeprefix(word).split()
    if said == ["all"]:
        return set(range(world_size))
    found = set()
    for one in said:
        match = re.fullmatch(r"(\d{1,3})(?:-(\d{1,3}))?", one)
        if not match:
            raise NotUnderstood(f'"{one}" is no {word}. Write them as 0, as 0,2, as 0-2, or as all.')
        found |= set(range(int(match[1]), int(match[2] or match[1]) + 1))
    if found and max(found) >= world_size:
        raise NotUnderstood(f"There is no {word} {max(found)}: this job has {word}s 0 to {world_size - 1}.")
    return found or None


def pitfall_of(name, pages):
    if name in pages:
        return pages[name]
    name = "".join(each for each in name[:60] if each.isprintable())
    near = difflib.get_close_matches(name, pages, 2, 0.6)
    raise NotUnderstood(f'There is no pitfall "{name}". ' + (f"Did you mean {' or '.join(near)}? " if near else "")
                        + "`list` shows all, `list WORD` those with that word.")


def listed(pages, words):
    """Pitfalls by lesson; with words only those that have them in their name, title or lesson."""
    found = [page for page in pages.values()
             if all(word in f"{page.lesson} {page.slug} {page.title}".lower() for word in words)]
    if not found:
        raise NotUnderstood(f'No pitfall has "{" ".join(words)}" in its name, title or lesson.')
    return found


def about_wrong(guess, pages):
    """A word of help that names nothing; `pages`: of what is still to be named."""
    for page in pages:
        if guess.slug in re.findall(r"[\w-]+", f"{page.facts.get('also', '')} {page.facts.get('unrelated', '')}"):
            return "That follows from a fault here. It is not the fault itself."
    if guess.lesson in [page.lesson for page in pages]:
        return "No. But the right one is in the same lesson."
    return "No. The right one is in another lesson."
