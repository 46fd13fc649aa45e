"use strict";
(() => {
  const page = JSON.parse(document.getElementById("charts").textContent);
  const views = {};

  // A chart's rows, as charts.py packed them by column.
  function unpack({ fields, columns, rows }) {
    const value = (column, i) => "all" in column ? column.all : column.words ? column.words[column.at[i]] : column[i];
    return Array.from({ length: rows }, (_, i) => Object.fromEntries(fields.map((field, j) => [field, value(columns[j], i)])));
  }

  // Of a chart that has a lesson's name in each row, only the rows whose run the filters show.
  function rowsOf(id) {
    const rows = unpack(page.charts[id]);
    return page.charts[id].filter ? rows.filter(row => !document.getElementById(row.link.slice(1)).hidden) : rows;
  }

  async function draw(figure) {
    const id = figure.id;
    if (id in views) return;
    views[id] = null;
    const spec = { ...page.specs[page.charts[id].spec], data: { name: "rows", values: rowsOf(id) } };
    const { view } = await vegaEmbed(figure.querySelector(".drawing"), spec,
      { actions: false, renderer: "svg", config: page.config, tooltip: { disableDefaultStyle: true } });
    views[id] = view;
    figure.dataset.drawn = "yes";
  }

  // The chart's rows as a table: text nodes only, so that nothing in them is ever markup.
  function tabulate(figure) {
    const id = figure.id, { fields, headings } = page.charts[id];
    const shown = fields.map((field, i) => [field, headings[i]]).filter(([, heading]) => heading !== null);
    const frame = document.createElement("div"), table = document.createElement("table");
    frame.className = "scroll";
    frame.tabIndex = 0;
    frame.setAttribute("role", "group");
    frame.setAttribute("aria-label", "Table: " + figure.querySelector(".title").textContent);
    const head = table.createTHead().insertRow();
    for (const [, heading] of shown) {
      const cell = document.createElement("th");
      cell.scope = "col";
      cell.textContent = heading;
      head.append(cell);
    }
    const body = table.createTBody();
    for (const row of rowsOf(id)) {
      const line = body.insertRow();
      for (const [field] of shown) {
        const cell = line.insertCell(), value = row[field];
        cell.textContent = value === null ? "none" : value;
        if (typeof value === "number") cell.className = "figure";
      }
      if (row.link) {
        const link = document.createElement("a"), last = line.cells[line.cells.length - 1];
        link.href = row.link;
        link.append(...last.childNodes);
        last.append(link);
      }
    }
    frame.append(table);
    const details = figure.querySelector("details.table");
    details.querySelector(".scroll")?.remove();
    details.append(frame);
  }

  const figures = [...document.querySelectorAll(".chart")];
  const watcher = new IntersectionObserver(entries => {
    for (const { isIntersecting, target } of entries) if (isIntersecting) draw(target);
  }, { rootMargin: "400px" });
  for (const figure of figures) {
    watcher.observe(figure);
    figure.querySelector("details.table").addEventListener("toggle", event => event.target.open && tabulate(figure));
  }
  addEventListener("beforeprint", () => figures.filter(figure => figure.offsetParent).forEach(draw));

  const lesson = document.getElementById("filter-lesson"), outcome = document.getElementById("filter-outcome");
  const runs = [...document.querySelectorAll(".run")], lessons = [...document.querySelectorAll(".lesson")];

  function filter() {
    const [key, value] = outcome.value.split(":");
    for (const run of runs) {
      run.hidden = Boolean(lesson.value && run.dataset.lesson !== lesson.value || key && run.dataset[key] !== value);
    }
    for (const section of lessons) section.hidden = !section.querySelector(".run:not([hidden])");
    const shown = runs.filter(run => !run.hidden).length;
    document.getElementById("filter-count").value = `${shown} of ${runs.length} runs`;
    for (const figure of figures) {
      const id = figure.id;
      if (!page.charts[id].filter) continue;
      figure.hidden = rowsOf(id).length === 0;
      views[id]?.data("rows", rowsOf(id)).resize().runAsync();
      if (figure.querySelector("details.table").open) tabulate(figure);
    }
  }
  lesson.addEventListener("change", filter);
  outcome.addEventListener("change", filter);

  // A link to a run opens it, whatever the filters hide.
  function follow() {
    const target = document.getElementById(location.hash.slice(1));
    if (!target?.closest(".lesson")) return;
    if (target.hidden || target.closest("[hidden]")) {
      lesson.value = outcome.value = "";
      filter();
    }
    if (target.matches(".run")) {
      target.open = true;
      target.querySelector("summary").focus({ preventScroll: true });
    }
    target.scrollIntoView();
  }
  addEventListener("hashchange", follow);
  filter();  // a browser keeps what was chosen before a reload
  follow();
})();
