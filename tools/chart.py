"""Line charts as SVG, without packages: for tools/curve-picture and tools/threads-picture."""
import math

WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 860, 480, 62, 250, 44, 46
COLOURS = ["#2f6fde", "#e0562b", "#2a9d5c", "#8d4fc9", "#c29a11", "#5b6472"]


class Curve:
    """points: (x, y) of the line; dots: (x, y) of marks; note: the second line of its label."""

    def __init__(self, label, points, dots=(), note="", colour=None, dashed=False):
        self.label, self.points, self.dots, self.note = label, points, dots, note
        self.colour, self.dashed = colour, dashed


def ticks(low, high, count):
    """Round numbers from low to high."""
    step = 10 ** math.floor(math.log10((high - low) / count))
    step = next(step * k for k in (1, 2, 5, 10) if (high - low) / (step * k) <= count)
    first = math.ceil(low / step)
    return [k * step for k in range(first, math.floor(high / step) + 1)]


def human(count):
    for unit, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if count >= unit:
            return f"{count / unit:g}{letter}"
    return f"{count:g}"


def escape(text):
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def chart(title, x_name, y_name, curves, x_range, y_range, x_ticks=None, x_scale=lambda x: x):
    """The picture as text. x_scale: where a value of x is, on any scale; values of y above the range are cut."""
    left, right = x_scale(x_range[0]), x_scale(x_range[1])
    lowest, highest = y_range

    def x(value):
        return LEFT + (WIDTH - LEFT - RIGHT) * (x_scale(value) - left) / (right - left or 1)

    def y(value):
        return TOP + (HEIGHT - TOP - BOTTOM) * (highest - min(value, highest)) / (highest - lowest)

    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{HEIGHT}" viewBox="0 0 {WIDTH} {HEIGHT}" '
        'font-family="DejaVu Sans, Helvetica, Arial, sans-serif" font-size="12">',
        f"<title>{escape(title)}</title>",
        '<rect width="100%" height="100%" fill="#ffffff"/>',
        f'<text x="{LEFT}" y="24" font-size="15" fill="#1d232b">{escape(title)}</text>',
    ]
    for value in ticks(lowest, highest, 8):
        at = y(value)
        out.append(f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{at:.1f}" y2="{at:.1f}" stroke="#e3e7ec"/>')
        out.append(f'<text x="{LEFT - 8}" y="{at + 4:.1f}" text-anchor="end" fill="#5b6472">{human(value)}</text>')
    for value in x_ticks or ticks(*x_range, 8):
        out.append(
            f'<text x="{x(value):.1f}" y="{HEIGHT - BOTTOM + 18}" text-anchor="middle" fill="#5b6472">{human(value)}</text>'
        )
    out.append(
        f'<text x="{LEFT + (WIDTH - LEFT - RIGHT) / 2:.1f}" y="{HEIGHT - 8}" text-anchor="middle" fill="#1d232b">{x_name}</text>'
        f'<text x="16" y="{TOP - 8}" fill="#1d232b">{y_name}</text>'
    )
    for i, curve in enumerate(curves):
        colour = curve.colour or COLOURS[i % len(COLOURS)]
        dash = ' stroke-dasharray="5 4"' if curve.dashed else ""
        points = " ".join(f"{x(a):.1f},{y(b):.1f}" for a, b in curve.points)
        out.append(f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="1.8"{dash}/>')
        for a, b in curve.dots:
            out.append(f'<circle cx="{x(a):.1f}" cy="{y(b):.1f}" r="3" fill="{colour}"/>')
        row = TOP + 14 + 36 * i
        out.append(f'<path d="M{WIDTH - RIGHT + 14} {row - 7}h19" stroke="{colour}" stroke-width="3"{dash}/>')
        out.append(f'<text x="{WIDTH - RIGHT + 38}" y="{row - 3}" fill="#1d232b">{escape(curve.label)}</text>')
        if curve.note:
            out.append(f'<text x="{WIDTH - RIGHT + 38}" y="{row + 12}" fill="#5b6472">{escape(curve.note)}</text>')
    out.append("</svg>")
    return "\n".join(out)
