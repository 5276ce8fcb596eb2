"""Pictures as SVG: the screen of a terminal, and charts. Each has a ground of its own, so that it can be read on light
and dark pages. Used by pictures.py and by tests/situations/test_pictures.py."""

import re
from typing import NamedTuple
from xml.sax.saxutils import escape

GROUND, LINE, TEXT, FAINT, GRID = "#ffffff", "#d0d7de", "#1f2328", "#57606a", "#eaeef2"
BLUE, VIOLET, GREEN, RED = "#0969da", "#8250df", "#1a7f37", "#cf222e"
# What a terminal's sixteen colours are on white: dark ones, then bright ones.
PALETTE = [TEXT, "#b3261e", "#1a7f37", "#8a5a00", "#0550ae", "#8a2da5", "#0b6e7f", "#57606a",
           "#6e7781", "#cf222e", "#2da44e", "#bf8700", "#0969da", "#a475f9", "#1b7c83", "#8c959f"]
MONO = "ui-monospace,SFMono-Regular,Menlo,Consolas,'DejaVu Sans Mono','Liberation Mono',monospace"
SANS = "system-ui,-apple-system,'Segoe UI','DejaVu Sans','Liberation Sans',sans-serif"
# Width and height of a character, and the space around all.
COLUMN, ROW, EDGE = 9, 19, 14
# Where the eight dots of a Braille character are, by bit.
DOTS = [(0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (1, 2), (0, 3), (1, 3)]


class Style(NamedTuple):
    """How a character is written."""

    ink: int | None = None
    ground: int | None = None
    bold: bool = False
    underlined: bool = False
    reversed: bool = False

    def after(self, codes):
        """With these numbers of an escape sequence."""
        numbers = iter([int(code or 0) for code in codes.split(";")])
        style = self
        for n in numbers:
            if n == 0:
                style = Style()
            elif n in (1, 4, 7, 22, 24, 27):
                name = {1: "bold", 2: "bold", 4: "underlined", 7: "reversed"}[n % 20]
                style = style._replace(**{name: n < 20})
            elif n in (38, 48) and next(numbers, 0) == 5:
                style = style._replace(**{"ink" if n == 38 else "ground": next(numbers, 0) % 16})
            elif 30 <= n <= 39 or 90 <= n <= 97:
                style = style._replace(ink=None if n == 39 else n % 10 + 8 * (n >= 90))
            elif 40 <= n <= 49 or 100 <= n <= 107:
                style = style._replace(ground=None if n == 49 else n % 10 + 8 * (n >= 100))
        return style

    def colours(self):
        """Of the ink and of the ground; no ground: the window's."""
        ink = TEXT if self.ink is None else PALETTE[self.ink]
        ground = None if self.ground is None else PALETTE[self.ground]
        return (ground or GROUND, ink) if self.reversed else (ink, ground)


def runs(screen):
    """(row, column, text, style) of each run of characters in one style; the screen is from `tmux capture-pane -ep`."""
    style = Style()
    for row, line in enumerate(screen.split("\n")):
        column = 0
        for at, part in enumerate(re.split(r"\x1b\[([0-9;]*)m", line)):
            if at % 2:
                style = style.after(part)
            elif part:
                yield row, column, part, style
                column += len(part)


def terminal(screen, columns, title):
    """A window with that screen."""
    lines = screen.rstrip("\n").count("\n") + 1
    width, height, top = columns * COLUMN + 2 * EDGE, lines * ROW + 2 * EDGE + 24, EDGE + 24
    out = [f'<rect x=".5" y=".5" width="{width - 1}" height="{height - 1}" rx="8" fill="{GROUND}" stroke="{LINE}"/>',
           f'<path d="M1 28.5H{width - 1}" stroke="{LINE}"/>']
    out += [f'<circle cx="{18 + 18 * i}" cy="15" r="5" fill="{LINE}"/>' for i in range(3)]
    out.append(label(width / 2, 19, title, FAINT, "middle", ' font-size="13"'))
    for row, column, text, style in runs(screen.rstrip("\n")):
        x, y = EDGE + column * COLUMN, top + row * ROW
        ink, ground = style.colours()
        if ground:
            out.append(f'<rect x="{x}" y="{y}" width="{len(text) * COLUMN}" height="{ROW}" fill="{ground}"/>')
        out += drawn(text, x, y, ink)
        # A place of its own for each group of words: the reader's font may have another width.
        for found in re.finditer(r"[!-~\u00a0-\u024f]+(?: [!-~\u00a0-\u024f]+)*", text):
            words, at = found[0], x + found.start() * COLUMN
            more = ' font-weight="bold"' if style.bold else ""
            more += ' text-decoration="underline"' if style.underlined else ""
            out.append(f'<text x="{at}" y="{y + 14}" textLength="{len(words) * COLUMN}"'
                       f' lengthAdjust="spacingAndGlyphs" fill="{ink}"{more}>{escape(words)}</text>')
    return svg(width, height, title, out, MONO, 15)


def drawn(text, x, y, ink):
    """Characters that fonts lack or draw with gaps: Braille, and the line of an axis."""
    dots, lines = "", ""
    for at, c in enumerate(text):
        left = x + at * COLUMN
        if "\u2800" <= c <= "\u28ff":
            bits = ord(c) - 0x2800
            dots += "".join(f"M{left + (i + .5) * COLUMN / 2:g} {y + (j + .5) * ROW / 4:g}h0"
                            for bit, (i, j) in enumerate(DOTS) if bits >> bit & 1)
        elif c == "\u2502":
            lines += f"M{left + COLUMN / 2:g} {y}v{ROW}"
    if dots:
        yield f'<path d="{dots}" stroke="{ink}" stroke-width="2.6" stroke-linecap="round"/>'
    if lines:
        yield f'<path d="{lines}" stroke="{ink}"/>'


def label(x, y, words, colour, anchor="start", more=""):
    place = f'x="{x:g}" y="{y:g}" text-anchor="{anchor}" fill="{colour}"{more}'
    return f"<text {place}>{escape(words)}</text>"


def svg(width, height, title, parts, font, size):
    head = (f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}"'
            f' role="img" font-family="{font}" font-size="{size}">')
    return "\n".join([head, f"<title>{escape(title)}</title>", *parts, "</svg>"]) + "\n"


def steps(most, base=10, units=(1, 2, 5)):
    """Marks of an axis from 0 to so much: at most six apart from 0, at one of the units times a power of the base."""
    step = min(base**power * unit for power in range(-9, 60) for unit in units if base**power * unit * 6 >= most)
    return [i * step for i in range(int(most / step) + 1)]


class Chart:
    """Lines, areas and dots over two axes; what is what is said in a line above."""

    WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 830, 360, 84, 24, 74, 46

    def __init__(self, title, x, y):
        """An axis: what it is of, the most of it, its marks, and how a number is written."""
        self.title, self.x, self.y, self.parts, self.legend = title, x, y, [], []

    def at(self, x, y):
        width, height = self.WIDTH - self.LEFT - self.RIGHT, self.HEIGHT - self.TOP - self.BOTTOM
        return self.LEFT + width * x / self.x[1], self.HEIGHT - self.BOTTOM - height * min(1, y / self.y[1])

    def path(self, points):
        return "M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in (self.at(*point) for point in points))

    def line(self, name, points, colour, dash=None):
        dashed = f' stroke-dasharray="{dash}"' if dash else ""
        self.legend.append((name, f'<path d="M0 -5h22" stroke="{colour}" stroke-width="2.5"{dashed}/>'))
        self.parts.append(f'<path d="{self.path(points)}" fill="none" stroke="{colour}" stroke-width="2.5"'
                          f' stroke-linejoin="round"{dashed}/>')

    def area(self, name, lower, upper, colour):
        """Between two lists of points."""
        style = f'fill="{colour}" fill-opacity=".3" stroke="{colour}"'
        self.legend.append((name, f'<rect y="-12" width="22" height="13" {style}/>'))
        outline = self.path([*upper, *reversed(lower)])
        self.parts.append(f'<path d="{outline}Z" fill="{colour}" fill-opacity=".3"/>'
                          f'<path d="{self.path(upper)}" fill="none" stroke="{colour}" stroke-width="1.5"/>')

    def dots(self, name, points, colour):
        self.legend.append((name, f'<circle cx="11" cy="-5" r="5" fill="{colour}"/>'))
        for x, y in (self.at(*point) for point in points):
            self.parts.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="5" fill="{colour}" stroke="{GROUND}"/>')

    def upright(self, words, x, colour):
        """A line from the bottom to the top, and what it is."""
        (left, top), bottom = self.at(x, self.y[1]), self.HEIGHT - self.BOTTOM
        halo = f' font-weight="600" stroke="{GROUND}" stroke-width="4" paint-order="stroke"'
        self.parts += [f'<path d="M{left:.1f} {top}V{bottom}" stroke="{colour}" stroke-dasharray="7 4"/>',
                       label(round(left - 8, 1), top + 14, words, colour, "end", halo)]

    def svg(self):
        right, bottom = self.WIDTH - self.RIGHT, self.HEIGHT - self.BOTTOM
        frame = f'width="{self.WIDTH - 1}" height="{self.HEIGHT - 1}" rx="8" fill="{GROUND}" stroke="{LINE}"'
        out = [f'<rect x=".5" y=".5" {frame}/>',
               label(self.LEFT, 28, self.title, TEXT, more=' font-size="16" font-weight="600"')]
        left = self.LEFT
        for name, mark in self.legend:
            out.append(f'<g transform="translate({left:g} 54)">{mark}{label(29, 0, name, TEXT)}</g>')
            left += 50 + 7.2 * len(name)
        for mark in self.y[2]:
            y = round(self.at(0, mark)[1], 1)
            out += [f'<path d="M{self.LEFT} {y}H{right}" stroke="{GRID}"/>',
                    label(self.LEFT - 8, y + 5, self.y[3](mark), FAINT, "end")]
        for mark in self.x[2]:
            x = round(self.at(mark, 0)[0], 1)
            out += [f'<path d="M{x} {bottom}v5" stroke="{FAINT}"/>',
                    label(x, bottom + 20, self.x[3](mark), FAINT, "middle")]
        out += [*self.parts, f'<path d="M{self.LEFT} {bottom}H{right}" stroke="{FAINT}"/>',
                label((self.LEFT + right) / 2, self.HEIGHT - 9, self.x[0], FAINT, "middle")]
        return svg(self.WIDTH, self.HEIGHT, self.title, out, SANS, 14)
