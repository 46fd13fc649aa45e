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
    const rows = unpack(page.tables[page.charts[id].table]);
    return page.charts[id].filter ? rows.filter(row => !document.getElementById(row.link.slice(1)).hidden) : rows;
  }

  // A value as text; a small one is not written with a row of zeros.
  function text(value) {
    if (value === null) return "none";
    return typeof value === "number" && value !== 0 && Math.abs(value) < 1e-4 ? value.toExponential() : String(value);
  }

  // What stands in a tooltip, which takes markup.
  function markup(value) {
    return text(value).replaceAll("&", "&amp;").replaceAll("<", "&lt;");
  }

  // What a chart needs beside its caption: the drawing, which the caption describes, and a table that is made when it is opened.
  function frame(figure) {
    figure.style.setProperty("--height", `${figure.dataset.height}px`);
    const image = document.createElement("div"), drawing = document.createElement("div"), table = document.createElement("details");
    image.setAttribute("role", "img");
    image.setAttribute("aria-labelledby", figure.id + "-text");
    drawing.className = "drawing";
    drawing.setAttribute("aria-hidden", "true");
    image.append(drawing);
    const title = figure.querySelector(".title").textContent;
    if (figure.matches(".wide")) {
      const scroll = scrolling("Chart: " + title);
      scroll.append(image);
      figure.append(scroll);
    } else figure.append(image);
    table.className = "table";
    table.append(document.createElement("summary"));
    table.firstChild.innerHTML = 'Table<span class="hidden"></span>';
    table.querySelector("span").textContent = " of " + title;
    table.addEventListener("toggle", () => table.open && tabulate(figure));
    figure.append(table);
  }

  function scrolling(label) {
    const region = document.createElement("div");
    region.className = "scroll";
    region.tabIndex = 0;
    region.setAttribute("role", "group");
    region.setAttribute("aria-label", label);
    return region;
  }

  async function draw(figure) {
    const id = figure.id;
    if (id in views) return;
    views[id] = null;
    const spec = { ...page.specs[page.charts[id].spec], data: { name: "rows", values: rowsOf(id) } };
    const { view } = await vegaEmbed(figure.querySelector(".drawing"), spec,
      { actions: false, ast: true, defaultStyle: false, renderer: "svg", config: page.config, tooltip: { disableDefaultStyle: true, sanitize: markup } });
    views[id] = view;
    figure.dataset.drawn = "yes";
  }

  // The chart's rows as a table: text nodes only, so that nothing in them is ever markup.
  function tabulate(figure) {
    const id = figure.id, { fields, headings } = page.tables[page.charts[id].table];
    const shown = fields.map((field, i) => [field, headings[i]]).filter(([, heading]) => heading !== null);
    const region = scrolling("Table: " + figure.querySelector(".title").textContent), table = document.createElement("table");
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
        cell.textContent = text(value);
        if (typeof value === "number") cell.className = "figure";
      }
      if (row.link) {
        const link = document.createElement("a"), last = line.cells[line.cells.length - 1];
        link.href = row.link;
        link.append(...last.childNodes);
        last.append(link);
      }
    }
    region.append(table);
    const details = figure.querySelector("details.table");
    details.querySelector(".scroll")?.remove();
    details.append(region);
  }

  // A narrow page makes blocks of these tables' cells, which would take their roles away.
  const ROLES = { TABLE: "table", THEAD: "rowgroup", TBODY: "rowgroup", TR: "row", TD: "cell" };
  for (const part of document.querySelectorAll("table.stacks, table.stacks *")) {
    const role = part.tagName === "TH" ? part.scope + "header" : ROLES[part.tagName];
    if (role) part.setAttribute("role", role.replace("colheader", "columnheader"));
  }

  const figures = [...document.querySelectorAll(".chart")];
  const watcher = new IntersectionObserver(entries => {
    for (const { isIntersecting, target } of entries) if (isIntersecting) draw(target);
  }, { rootMargin: "400px" });
  for (const figure of figures) {
    frame(figure);
    watcher.observe(figure);
  }
  addEventListener("beforeprint", () => figures.filter(figure => figure.offsetParent).forEach(draw));

  const lesson = document.getElementById("filter-lesson"), outcome = document.getElementById("filter-outcome");
  if (!lesson) return;  // the page of one job has nothing to filter
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
