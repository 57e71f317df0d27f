"""What a recorded failure says: what a person looks for first, in a few lines."""

import re
from pathlib import Path

from stepwell.adapters.processes import ProcessFailedError

FRAMES_MAX = 4
OUTPUT_LINES = 5
LINE_CHARS_MAX = 300
SENTENCE_CHARS_MAX = 1_500

_FRAME = re.compile(r'  File "(?P<file>.+)", line (?P<line>\d+), in (?P<function>.+)')
_OURS = str(Path(__file__).resolve().parents[2])


def cause_of(failure: ProcessFailedError) -> str:
    """The failure; where code raised, with file and line and the last frames of its own files; the last output."""
    parts = [_bounded(str(failure), SENTENCE_CHARS_MAX)]
    frames = _frames(failure.remote_traceback or "")
    if frames:
        match = _FRAME.match(frames[-1][0])
        assert match is not None
        parts[0] += f" at {Path(match['file']).name}:{match['line']} in {match['function']}"
        parts += ["traceback, its last lines:", *(line for frame in frames[-FRAMES_MAX:] for line in frame)]
        parts += [_last_line(failure.remote_traceback or "")]
    output = failure.output.strip().splitlines()[-OUTPUT_LINES:]
    if output:
        parts += ["last output:", *output]
    return "\n".join([parts[0], *(_bounded(line, LINE_CHARS_MAX) for line in parts[1:])])


def _frames(traceback: str) -> list[list[str]]:
    """The frames of the last exception: those of the user's own files, or all where it raised in none of them."""
    frames: list[list[str]] = []
    for line in traceback.rpartition("Traceback (most recent call last):\n")[2].splitlines():
        if _FRAME.match(line):
            frames.append([line])
        elif frames and line.startswith("    "):
            frames[-1].append(line)
    theirs = [frame for frame in frames if not _is_ours(frame[0])]
    return theirs or frames


def _is_ours(frame: str) -> bool:
    """Whether it is of Stepwell, an installed library or Python itself: not what a person would mend."""
    match = _FRAME.match(frame)
    file = match["file"] if match else ""
    return file.startswith((_OURS, "<")) or "/site-packages/" in file or "/lib/python" in file


def _last_line(traceback: str) -> str:
    """The exception itself; its message may have further lines, which the sentence has already."""
    lines = traceback.rpartition("Traceback (most recent call last):\n")[2].splitlines()
    return next((line for line in lines if line and not line.startswith(" ")), "")


def _bounded(text: str, length: int) -> str:
    return text if len(text) <= length else text[: length - 1] + "…"
