"""A picture as SVG: shapes and texts in the colours of the page's theme, light or dark, with a text for those who
cannot see it."""

import xml.etree.ElementTree as xml

# What each class looks like in a light theme, and in a dark one.
COLOURS = {"ink": ("#1f2328", "#e6edf3"), "soft": ("#59636e", "#9198a1"), "line": ("#818b98", "#656c76"),
           "paper": ("#ffffff", "#0d1117"), "one": ("#0969da", "#4493f8"), "two": ("#bc4c00", "#f0883e"),
           "three": ("#1a7f37", "#3fb950"), "bad": ("#cf222e", "#f85149"), "fill": ("#eaeef2", "#262c36")}
COLUMNS = 400  # of a written line
FONT = "system-ui, -apple-system, 'Segoe UI', 'DejaVu Sans', sans-serif"


def _style():
    def rules(theme):
        return "".join(f".{name}{{fill:{both[theme]}}}.s-{name}{{stroke:{both[theme]};fill:none}}"
                       for name, both in COLOURS.items())

    return (f"text{{font-family:{FONT};font-size:14px}}.small{{font-size:12px}}.bold{{font-weight:600}}"
            f"{rules(0)}@media(prefers-color-scheme:dark){{{rules(1)}}}")


def signed(value, decimals):
    """With a real minus sign."""
    return f"{value:.{decimals}f}".replace("-", "\N{MINUS SIGN}")


class Picture:
    def __init__(self, width, height, title, text):
        """`title` names the picture; `text` says what it shows, for those who cannot see it."""
        self.root = xml.Element("svg", xmlns="http://www.w3.org/2000/svg", viewBox=f"0 0 {width} {height}",
                                width=str(width), height=str(height), role="img",
                                **{"aria-labelledby": "title text"})
        xml.SubElement(self.root, "title", id="title").text = title
        xml.SubElement(self.root, "desc", id="text").text = text
        xml.SubElement(self.root, "style").text = _style()
        self._add("rect", width=width, height=height, **{"class": "paper"})

    def _add(self, kind, **attributes):
        element = xml.SubElement(self.root, kind)
        for name, value in attributes.items():
            element.set(name.replace("_", "-"), f"{value:g}" if isinstance(value, float) else str(value))
        return element

    def text(self, x, y, words, colour="ink", anchor="middle", more=""):
        self._add("text", x=x, y=y, text_anchor=anchor, **{"class": f"{colour} {more}".strip()}).text = str(words)

    def box(self, x, y, width, height, words="", colour="fill", edge="line", ink="ink", more=""):
        self._add("rect", x=x, y=y, width=width, height=height, rx=4, stroke_width=1, **{"class": f"{colour}"})
        if edge:
            self._add("rect", x=x, y=y, width=width, height=height, rx=4, stroke_width=1.5, **{"class": f"s-{edge}"})
        if words != "":
            self.text(x + width / 2, y + height / 2 + 5, words, ink, more=more)

    def line(self, x1, y1, x2, y2, colour="line", dashed=False, width=1.5):
        more = {"stroke_dasharray": "4 4"} if dashed else {}
        self._add("line", x1=x1, y1=y1, x2=x2, y2=y2, stroke_width=width, **{"class": f"s-{colour}"}, **more)

    def curve(self, points, colour="line", width=2):
        self._add("polyline", points=" ".join(f"{x:.1f},{y:.1f}" for x, y in points), stroke_width=width,
                  **{"class": f"s-{colour}"})

    def dot(self, x, y, colour="ink", radius=5):
        self._add("circle", cx=x, cy=y, r=radius, **{"class": colour})

    def arrow(self, x1, y1, x2, y2, colour="line"):
        self.line(x1, y1, x2, y2, colour)
        length = ((x2 - x1) ** 2 + (y2 - y1) ** 2) ** 0.5
        along, across = ((x2 - x1) / length, (y2 - y1) / length), (-(y2 - y1) / length, (x2 - x1) / length)
        tip = [(x2, y2)] + [(x2 - 8 * along[0] + side * 4 * across[0], y2 - 8 * along[1] + side * 4 * across[1])
                            for side in (1, -1)]
        self._add("polygon", points=" ".join(f"{x:.1f},{y:.1f}" for x, y in tip), **{"class": colour})

    def written(self):
        """Lines of shapes, of at most COLUMNS but for a shape that is longer."""
        self.root.text, column, before = "\n", COLUMNS, self.root
        for shape in self.root:
            length = len(xml.tostring(shape, encoding="unicode"))
            if column + length <= COLUMNS:
                before.tail, column = "", column + length
            else:
                column = length
            before, shape.tail = shape, "\n"
        return xml.tostring(self.root, encoding="unicode") + "\n"
