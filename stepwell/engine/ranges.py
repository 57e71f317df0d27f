"""Ascending lists of ranges [first, last], both included, with a bound on their number."""


def contains(ranges: list[list[int]], number: int) -> bool:
    """Whether a range holds the number."""
    return any(first <= number <= last for first, last in ranges)


def count_from(ranges: list[list[int]], first: int) -> int:
    """How many numbers from ``first`` on the ranges hold."""
    return sum(end - max(start, first) + 1 for start, end in ranges if end >= first)


def append(ranges: list[list[int]], first: int, last: int, limit: int) -> bool:
    """Add a range above all others, grown together with the one it touches. False: no room, nothing was added."""
    if ranges and ranges[-1][1] == first - 1:
        ranges[-1][1] = last
        return True
    if len(ranges) >= limit:
        return False
    ranges.append([first, last])
    return True


def insert(ranges: list[list[int]], number: int, limit: int) -> bool:
    """Add one number that is in no range yet. False: no room, nothing was added."""
    at = 0
    while at < len(ranges) and ranges[at][0] < number:
        at += 1
    touches_before = at > 0 and ranges[at - 1][1] == number - 1
    touches_after = at < len(ranges) and ranges[at][0] == number + 1
    if touches_before and touches_after:
        ranges[at - 1][1] = ranges[at][1]
        del ranges[at]
    elif touches_before:
        ranges[at - 1][1] = number
    elif touches_after:
        ranges[at][0] = number
    elif len(ranges) >= limit:
        return False
    else:
        ranges.insert(at, [number, number])
    return True


def remove(ranges: list[list[int]], number: int, limit: int) -> int | None:
    """Take one number out of the range that holds it.

    Returns:
        None where no range holds it. Else how many further numbers had to leave the list, because splitting the range
        would have made it too long (0 nearly always).
    """
    for at, (first, last) in enumerate(ranges):
        if not first <= number <= last:
            continue
        parts = [part for part in ([first, number - 1], [number + 1, last]) if part[0] <= part[1]]
        dropped = 0
        if len(parts) == 2 and len(ranges) >= limit:
            shorter = min(parts, key=lambda part: part[1] - part[0])
            parts.remove(shorter)
            dropped = shorter[1] - shorter[0] + 1
        ranges[at : at + 1] = parts
        return dropped
    return None
