"""Segments as one text, and as subtitles: SubRip and WebVTT."""

from collections.abc import Sequence

from kanawa_runtime.serve.speech.transcriber import Segment


def whole_text(segments: Sequence[Segment]) -> str:
    """Returns the text of all segments."""
    # A model's texts begin with the space before their first word; letters have none at a cut.
    return " ".join(text for one in segments if (text := one.text.strip()))


def as_srt(segments: Sequence[Segment]) -> str:
    """Returns SubRip's text."""
    blocks = [
        f"{number}\n{_clock(one.start, ',')} --> {_clock(one.end, ',')}\n{one.text.strip()}\n"
        for number, one in enumerate(segments, 1)
    ]
    return "\n".join(blocks)


def as_vtt(segments: Sequence[Segment]) -> str:
    """Returns WebVTT's text, in which an arrow would end a cue's text."""
    blocks = [
        f"{_clock(one.start, '.')} --> {_clock(one.end, '.')}\n{one.text.strip().replace('-->', '->')}\n"
        for one in segments
    ]
    return "\n".join(["WEBVTT\n", *blocks])


def _clock(seconds: float, point: str) -> str:
    thousandths = round(seconds * 1000)
    minutes, rest = divmod(thousandths, 60_000)
    return f"{minutes // 60:02}:{minutes % 60:02}:{rest // 1000:02}{point}{rest % 1000:03}"
