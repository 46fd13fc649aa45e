"""The page's charts: each has a title, a text that says what to see, columns and rows. Rows stand in the page once; the
drawing and the table beside it are both made from them."""

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


def packed(values):
    """A column as the page holds it. What is the same in every row stands there once, {"all": value}; of words that come
    again and again each does, {"words": [...], "at": [...]}."""
    if all(value == values[0] for value in values):
        return {"all": values[0]}
    if not all(isinstance(value, str) for value in values):
        return values
    words = list(dict.fromkeys(values))
    numbers = {word: number for number, word in enumerate(words)}
    return {"words": words, "at": [numbers[value] for value in values]}


class Charts:
    """All of a page, with equal specifications kept once."""

    def __init__(self):
        self.charts = {}

    def add(self, *arguments, **more):
        chart = Chart(*arguments, **more)
        if chart.id in self.charts:
            raise ValueError(f"two charts with the id {chart.id}")
        self.charts[chart.id] = chart
        return chart

    def for_page(self):
        specs, numbers, charts = [], {}, {}
        for chart in self.charts.values():
            key = json.dumps(chart.spec, sort_keys=True)
            if key not in numbers:
                numbers[key] = len(specs)
                specs.append(chart.spec)
            charts[chart.id] = {"spec": numbers[key], "fields": [field for field, _ in chart.columns],
                                "headings": [heading for _, heading in chart.columns],
                                "columns": [packed(column) for column in zip(*chart.rows)], "rows": len(chart.rows),
                                "filter": chart.lesson}
        return {"config": CONFIG, "specs": specs, "charts": charts}
