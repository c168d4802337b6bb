"""Small SVG diagrams: sequence diagrams, and boxes one below the other. `draw_explanations.py` uses it."""

from __future__ import annotations

from dataclasses import dataclass, field
from html import escape

WIDTH = 540
INK, LINE, FAINT = "#1f2933", "#52606d", "#cbd2d9"
FILLS = {"data": "#e3f2fd", "code": "#fff4d6", "state": "#e4f5e6", "lost": "#fde3e1", "plain": "#f3f5f7"}
_MARKER = (
    '<defs><marker id="tip" viewBox="0 0 10 10" refX="9" refY="5" markerWidth="7" markerHeight="7" orient="auto">'
    f'<path d="M0 0 L10 5 L0 10 z" fill="{LINE}"/></marker></defs>'
)


@dataclass
class Picture:
    """Elements of an SVG file, collected from top to bottom."""

    title: str
    """Read by screen readers."""
    elements: list[str] = field(default_factory=list)
    height: int = 0

    def text(
        self, x: float, y: float, text: str, *, size: int = 14, anchor: str = "middle", bold: bool = False
    ) -> None:
        """Write one line with its baseline at y."""
        weight = ' font-weight="600"' if bold else ""
        self.elements.append(
            f'<text x="{x:g}" y="{y:g}" font-size="{size}" text-anchor="{anchor}"{weight}>{escape(text)}</text>'
        )

    def box(
        self, x: float, y: float, width: float, lines: list[str], *, kind: str = "plain", heading: bool = False
    ) -> float:
        """Draw a box with lines of text, the first one bold if it is a heading. Return its height."""
        height = 12 + 19 * len(lines)
        self.elements.append(
            f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height}" rx="5" fill="{FILLS[kind]}" '
            f'stroke="{LINE}"/>'
        )
        for number, line in enumerate(lines):
            self.text(x + width / 2, y + 20 + 19 * number, line, bold=heading and number == 0)
        return height

    def line(self, x1: float, y1: float, x2: float, y2: float, *, tip: bool = True, dashed: bool = False) -> None:
        """Draw a line, by default an arrow."""
        end = ' marker-end="url(#tip)"' if tip else ""
        dash = ' stroke-dasharray="5 4"' if dashed else ""
        colour = LINE if tip else FAINT
        self.elements.append(
            f'<line x1="{x1:g}" y1="{y1:g}" x2="{x2:g}" y2="{y2:g}" stroke="{colour}" stroke-width="1.5"{dash}{end}/>'
        )

    def svg(self) -> str:
        """Return the file."""
        head = (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {self.height}" width="{WIDTH}" '
            f'height="{self.height}" role="img" font-family="sans-serif" fill="{INK}">'
        )
        ground = f'<rect width="{WIDTH}" height="{self.height}" rx="6" fill="#ffffff"/>'
        return "\n".join([head, f"<title>{escape(self.title)}</title>", _MARKER, ground, *self.elements, "</svg>", ""])


@dataclass(frozen=True)
class Work:
    """What one participant does: a box on its line. Several with the same `row` are side by side."""

    who: int
    text: str
    kind: str = "code"
    row: int = 0


@dataclass(frozen=True)
class Message:
    """An arrow from one participant to another."""

    source: int
    to: int
    text: str
    dashed: bool = False


@dataclass(frozen=True)
class Together:
    """What all participants do at the same time: a bar over all lines."""

    text: str
    kind: str = "data"


def sequence(title: str, participants: list[str], steps: list[Work | Message | Together]) -> str:
    """Return a sequence diagram: time runs downwards, each participant has a vertical line."""
    picture = Picture(title)
    count = len(participants)
    places = [WIDTH * (2 * number + 1) / (2 * count) for number in range(count)]
    widest = WIDTH / count - 12
    top, y = len(picture.elements), 52.0
    row = 0
    for number, step in enumerate(steps):
        if isinstance(step, Together):
            y += picture.box(10, y, WIDTH - 20, step.text.split("\n"), kind=step.kind, heading="\n" in step.text) + 14
        elif isinstance(step, Message):
            y = _message(picture, places, step, y)
        else:
            row = max(row, _work(picture, places[step.who], widest, step, y))
            following = steps[number + 1] if number + 1 < len(steps) else None
            if not (isinstance(following, Work) and step.row and following.row == step.row):
                y, row = y + row + 12, 0
    lines = Picture("")
    for place, name in zip(places, participants, strict=True):
        lines.line(place, 38, place, y, tip=False)
        lines.box(place - widest / 2, 8, widest, [name])
    picture.elements[top:top] = lines.elements
    picture.height = int(y + 8)
    return picture.svg()


def _message(picture: Picture, places: list[float], step: Message, y: float) -> float:
    lines = step.text.split("\n")
    middle = (places[step.source] + places[step.to]) / 2
    for number, line in enumerate(lines):
        length = 7.2 * len(line) + 8
        picture.elements.append(
            f'<rect x="{middle - length / 2:g}" y="{y + 17 * number:g}" width="{length:g}" height="17" fill="#ffffff"/>'
        )
        picture.text(middle, y + 13 + 17 * number, line, size=13)
    y += 17 * len(lines) + 5
    picture.line(places[step.source], y, places[step.to], y, dashed=step.dashed)
    return y + 13


def _work(picture: Picture, place: float, width: float, step: Work, y: float) -> int:
    return int(picture.box(place - width / 2, y, width, step.text.split("\n"), kind=step.kind))


@dataclass(frozen=True)
class Stop:
    """One box of a path, and what leads to the next one."""

    lines: list[str]
    then: list[str] = field(default_factory=list)
    kind: str = "data"


def path(title: str, stops: list[Stop]) -> str:
    """Return boxes one below the other, with arrows, and text beside each arrow."""
    picture = Picture(title)
    y = 10.0
    for number, stop in enumerate(stops):
        y += picture.box(70, y, WIDTH - 140, stop.lines, kind=stop.kind, heading=True)
        if number + 1 < len(stops):
            length = max(26, 10 + 18 * len(stop.then))
            picture.line(110, y, 110, y + length - 1)
            for place, line in enumerate(stop.then):
                picture.text(128, y + 18 + 18 * place, line, size=13, anchor="start")
            y += length
    picture.height = int(y + 10)
    return picture.svg()
