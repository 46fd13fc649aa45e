"""The page's charts: each has a title, a text that says what to see, columns and rows. The drawing and the table beside
it are both made from the rows. Equal specifications and equal tables stand in the page once."""

import dataclasses
import json

from specs import CONFIG


@dataclasses.dataclass
class Chart:
    id: str
    title: str
    text: str      # what is drawn, for whoever cannot see it
    columns: list  # (field, heading); a field without a heading is for the drawing only
    rows: list
    spec: dict
    wide: bool = False  # as wide as it needs to be; the frame scrolls
    lesson: str = ""    # of rows that have a lesson each: the filter's column
    legend: list = ()   # (label, page.css's class); of a specification that has none of its own

    @property
    def height(self):
        """About as high as the drawing will be, so that nothing below it moves when it is drawn."""
        return self.spec["height"] + 40 if isinstance(self.spec["height"], int) else 48


def rounded(value):
    """Four digits of a figure: nobody reads more off a page, and seventeen of each would be half of it."""
    return float(f"{value:.4g}") if isinstance(value, float) else value


def packed(values):
    """A column as the page holds it. What is the same in every row stands there once, {"all": value}; of words that
    come again and again each does, {"words": [...], "at": [...]}."""
    if all(value == values[0] for value in values):
        return {"all": values[0]}
    if not all(isinstance(value, str) for value in values):
        return values
    words = list(dict.fromkeys(values))
    numbers = {word: number for number, word in enumerate(words)}
    return {"words": words, "at": [numbers[value] for value in values]}


class Kept:
    """Things by their number, equal ones once."""

    def __init__(self):
        self.things, self.numbers = [], {}

    def number(self, thing):
        key = json.dumps(thing, sort_keys=True)
        if key not in self.numbers:
            self.numbers[key] = len(self.things)
            self.things.append(thing)
        return self.numbers[key]


class Charts:
    """All of a page."""

    def __init__(self):
        self.charts = {}

    def add(self, id, title, text, columns, rows, spec, **more):
        if id in self.charts:
            raise ValueError(f"two charts with the id {id}")
        rows = [[rounded(value) for value in row] for row in rows]
        self.charts[id] = Chart(id, title, text, columns, rows, spec, **more)
        return self.charts[id]

    def for_page(self):
        specs, tables = Kept(), Kept()
        charts = {chart.id: {"spec": specs.number(chart.spec), "filter": chart.lesson, "table": tables.number({
            "fields": [field for field, _ in chart.columns], "headings": [heading for _, heading in chart.columns],
            "columns": [packed(column) for column in zip(*chart.rows)], "rows": len(chart.rows)})}
            for chart in self.charts.values()}
        return {"config": CONFIG, "specs": specs.things, "tables": tables.things, "charts": charts}
