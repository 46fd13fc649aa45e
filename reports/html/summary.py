"""What a comparison report comes to."""

RIGHT = ("as-expected", "skipped")
WORDS = {"as-expected": "as expected", "false-alarm": "false alarm", "not-manifested": "not proved broken",
         "not-named": "not named", "manifested": "looks broken", "not-completed": "did not complete",
         "ended-otherwise": "ended otherwise"}


def in_words(verdict):
    return WORDS.get(verdict, verdict)


def is_named(variant):
    return any(finding["pitfall"] == variant["name"] for finding in variant["findings"])


def of_lesson(comparison):
    variants = comparison["variants"]
    ran = [variant for variant in variants if variant["outcome"] != "skipped"]
    broken = [variant for variant in ran if variant["kind"] == "broken"]
    healthy = [variant for variant in ran if variant["kind"] != "broken"]
    return {
        "lesson": comparison["lesson"],
        "title": comparison["title"],
        "variants": len(variants),
        "broken": len(broken),
        "named": sum(is_named(variant) for variant in broken),
        "healthy": len(healthy),
        "alarms": sum(any(f["severity"] == "violation" for f in variant["findings"]) for variant in healthy),
        "skipped": len(variants) - len(ran),
        "wrong": sum(variant["verdict"] not in RIGHT for variant in variants),
        "seconds": sum(variant["timings"]["seconds"] for variant in variants),
    }


def total(lessons):
    keys = ("variants", "broken", "named", "healthy", "alarms", "skipped", "wrong", "seconds")
    return {"lessons": len(lessons), **{key: sum(lesson[key] for lesson in lessons) for key in keys}}


def environments(comparisons):
    """(what all lessons ran in, names of what differs, (lesson, values of that))."""
    all_of = [comparison["environment"] for comparison in comparisons]
    common = {key: value for key, value in all_of[0].items() if all(other[key] == value for other in all_of)}
    differing = [key for key in all_of[0] if key not in common]
    return common, differing, [(comparison["lesson"], [comparison["environment"][key] for key in differing])
                               for comparison in comparisons]


def skips(comparisons):
    """(lesson, variant, reason)."""
    return [(comparison["lesson"], variant["name"], variant["reason"]) for comparison in comparisons
            for variant in comparison["variants"] if variant["outcome"] == "skipped"]
