"""Numbers for people: three digits and a unit that fits, so that a small model's plan isn't a column of zeros."""

_BYTES = ("B", "KiB", "MiB", "GiB", "TiB")
_SENT = ("B", "kB", "MB", "GB", "TB", "PB")
_COUNTS = ("", "k", "M", "G", "T", "P", "E")
_SECONDS = (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6), ("ns", 1e-9))


def format_bytes(count: float) -> str:
    """Returns bytes, such as "12.3 GiB" or "-40 B"."""
    return _scaled(count, 1024, _BYTES)


def format_count(count: float) -> str:
    """Returns FLOPs, cycles or tokens a second in powers of a thousand, such as "1.85 T"; "0" for none."""
    return _scaled(count, 1000, _COUNTS).rstrip()


def format_sent(count: float) -> str:
    """Returns bytes that move, such as "3.2 GB": in powers of a thousand, as bandwidths are quoted."""
    return _scaled(count, 1000, _SENT)


def format_seconds(seconds: float) -> str:
    """Returns seconds, such as "2.48 s" or "310 µs"; "0 s" for none."""
    if not seconds:
        return "0 s"
    unit, worth = next((pair for pair in _SECONDS if abs(seconds) >= pair[1]), _SECONDS[-1])
    return f"{_digits(seconds / worth)} {unit}"


def _scaled(value: float, base: int, units: tuple[str, ...]) -> str:
    scaled, step = float(value), 0
    # 999.6 would be written as 1000: the next unit is due a little earlier.
    while abs(scaled) >= base - 0.5 and step < len(units) - 1:
        scaled, step = scaled / base, step + 1
    return f"{_digits(scaled)} {units[step]}"


def _digits(value: float) -> str:
    """Returns a number with three digits at least, and no more behind the point than those need."""
    if value == int(value) and abs(value) < 1000:
        return f"{value:.0f}"
    return f"{value:.2f}" if abs(value) < 10 else f"{value:.1f}" if abs(value) < 100 else f"{value:,.0f}"
