"""How much source there is: a ceiling for core, and one for all packages together."""

import collections

#: Lines of source that are aimed at, by package; "all" is their sum. By deleting, never by denser lines.
CEILINGS = {"core": 19_000, "all": 90_000}
#: What was reached so far; no number may grow.
REACHED = {"core": 24_090, "all": 139_100}


def lines_of(sources) -> collections.Counter:
    """Returns the lines of source by package, and of all."""
    counted = collections.Counter()
    for source in sources:
        counted[source.package] += source.text.count("\n")
        counted["all"] += source.text.count("\n")
    return counted


def over(counted, ceilings) -> list[str]:
    """Returns what is over its ceiling, one line each."""
    return [
        f"{name} has {counted[name]} lines of source, at most {ceiling}"
        for name, ceiling in ceilings.items()
        if counted[name] > ceiling
    ]


def test_source_stays_under_its_ceilings(sources):
    found = over(lines_of(sources), REACHED)
    assert not found, "delete, or make one of two:\n" + "\n".join(found)


def test_a_line_too_many_is_seen(sources):
    counted = lines_of(sources)
    assert over(counted, {"core": counted["core"] - 1, "all": counted["all"]}) == [
        f"core has {counted['core']} lines of source, at most {counted['core'] - 1}"
    ]
