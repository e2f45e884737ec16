"""Small plots as SVG texts: ranges over time, and a matrix. Numbers in, text out.

They are a few shapes and need no library; a page may hold them as they are. Colours are told by
the text beside them too, and every plot says its units.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from html import escape

_WIDTH, _HEIGHT = 900, 320
_LEFT, _RIGHT, _TOP, _BOTTOM = 80, 20, 40, 50
_COLUMNS = _WIDTH - _LEFT - _RIGHT
_CELL = 44
_INK, _GRID, _MARK = "#222222", "#dddddd", "#1f5fa8"
_TICKS = 5


def over_time(
    times: Sequence[float],
    values: Sequence[float],
    *,
    title: str,
    x_label: str,
    y_label: str,
    is_log: bool = False,
) -> str:
    """Plot values over time: in each column of pixels a bar from the least to the greatest.

    So no peak is lost, however many values there are. On a logarithmic axis each value is a dot,
    and values of 0 are left out.
    """
    pairs = [(t, v) for t, v in zip(times, values, strict=True) if v > 0 or not is_log]
    if not pairs:
        return _page(_WIDTH, _HEIGHT, title, _text(_WIDTH / 2, _HEIGHT / 2, "nothing to plot"))
    first, last = min(t for t, _ in pairs), max(t for t, _ in pairs)
    least, most = min(v for _, v in pairs), max(v for _, v in pairs)
    low, high = (10 ** math.floor(math.log10(least)), most) if is_log else (min(0.0, least), most)
    high = high if high > low else low + 1
    width, columns = max(last - first, 1e-12), dict[int, tuple[float, float]]()
    for time, value in pairs:
        at = min(int((time - first) / width * _COLUMNS), _COLUMNS - 1)
        known = columns.get(at, (value, value))
        columns[at] = min(known[0], value), max(known[1], value)

    def y(value: float) -> float:
        share = math.log(value / low) / math.log(high / low) if is_log else 0.0
        share = share if is_log else (value - low) / (high - low)
        return _HEIGHT - _BOTTOM - share * (_HEIGHT - _TOP - _BOTTOM)

    if is_log:  # values of two kinds in a column must not look like all between them
        dots = {
            (min(int((t - first) / width * _COLUMNS), _COLUMNS - 1), int(y(v))) for t, v in pairs
        }
        bars = "".join(f"M{_LEFT + at}.5 {row - 1}v2" for at, row in sorted(dots))
    else:
        bars = "".join(
            f"M{_LEFT + at}.5 {y(bottom) + 1:.1f}V{y(top) - 1:.1f}"
            for at, (bottom, top) in sorted(columns.items())
        )
    shapes = []
    for tick in _log_ticks(low, high) if is_log else _ticks(low, high):
        shapes.append(f'<path stroke="{_GRID}" d="M{_LEFT} {y(tick):.1f}H{_WIDTH - _RIGHT}"/>')
        shapes.append(_text(_LEFT - 6, y(tick) + 4, f"{tick:g}", anchor="end"))
    for tick in _ticks(first, last):
        x = _LEFT + (tick - first) / width * _COLUMNS
        shapes.append(_text(x, _HEIGHT - _BOTTOM + 18, f"{tick:g}"))
    shapes.append(f'<path stroke="{_MARK}" stroke-width="1" d="{bars}"/>')
    shapes.append(_text(_LEFT + _COLUMNS / 2, _HEIGHT - 8, x_label))
    shapes.append(_text(_LEFT, _TOP - 8, y_label, anchor="start"))
    return _page(_WIDTH, _HEIGHT, title, "".join(shapes))


def matrix(
    values: Mapping[tuple[str, str], float], *, title: str, x_label: str, y_label: str
) -> str:
    """Plot values by row and column, the darker the greater; each cell shows its value."""
    rows = sorted({row for row, _ in values})
    columns = sorted({column for _, column in values})
    most = max(values.values(), default=1.0) or 1.0
    shapes = [
        _text(_LEFT + len(columns) * _CELL / 2, _TOP + 14, x_label),
        _text(8, _TOP + 30, y_label, anchor="start"),
    ]
    top = _TOP + 40
    for at, name in enumerate(columns):
        shapes.append(_text(_LEFT + (at + 0.5) * _CELL, top - 6, name))
    for line, name in enumerate(rows):
        shapes.append(_text(_LEFT - 6, top + (line + 0.6) * _CELL, name, anchor="end"))
        for at, column in enumerate(columns):
            value = values.get((name, column))
            if value is not None:
                shapes.append(_cell(_LEFT + at * _CELL, top + line * _CELL, value, value / most))
    width = max(_LEFT + len(columns) * _CELL + _RIGHT, _LEFT + 8 * len(title))
    return _page(width, top + len(rows) * _CELL + 20, title, "".join(shapes))


def _cell(x: float, y: float, value: float, share: float) -> str:
    light = 95 - 60 * max(0.0, min(share, 1.0))
    ink = "#ffffff" if light < 60 else _INK  # noqa: PLR2004
    box = f'<rect x="{x}" y="{y}" width="{_CELL - 1}" height="{_CELL - 1}"'
    return f'{box} fill="hsl(212 60% {light:.0f}%)"/>' + _text(
        x + _CELL / 2, y + _CELL / 2 + 4, f"{value:.3g}", ink=ink
    )


def _ticks(low: float, high: float) -> list[float]:
    """Return some round numbers from `low` to `high`."""
    rough = max((high - low) / _TICKS, 1e-12)
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(each * power for each in (1, 2, 5, 10) if each * power >= rough)
    first = math.ceil(low / step)
    return [at * step for at in range(first, math.floor(high / step) + 1)]


def _log_ticks(low: float, high: float) -> list[float]:
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    return [each for at in range(first, last + 1) if low <= (each := 10.0**at) <= high]


def _text(x: float, y: float, said: str, *, anchor: str = "middle", ink: str = _INK) -> str:
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" fill="{ink}">{escape(said)}</text>'
    )


def _page(width: float, height: float, title: str, shapes: str) -> str:
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" '
        f'height="{height}" role="img" font-family="sans-serif" font-size="12">'
        f"<title>{escape(title)}</title>"
        f'<rect width="100%" height="100%" fill="#ffffff"/>'
        f'<text x="{_LEFT}" y="18" font-size="15" fill="{_INK}">{escape(title)}</text>'
        f"{shapes}</svg>\n"
    )
