// A plain HTML table that keeps its selection, scroll position and sort order while rows change. Roles are
// written down, since in a narrow window rows are no table rows for the browser any more.
export function render({ model, el }) {
  const wrap = document.createElement("div");
  wrap.className = "wrap";
  const table = document.createElement("table");
  table.setAttribute("role", "grid");
  const caption = document.createElement("caption");
  const head = document.createElement("thead");
  const body = document.createElement("tbody");
  for (const group of [head, body]) group.setAttribute("role", "rowgroup");
  table.append(caption, head, body);
  const note = document.createElement("div");
  note.className = "note";
  wrap.append(table, note);
  let sort = { key: null, down: false };
  let kept = new Map();

  function sortValue(row, key) {
    const value = row[key];
    if (value && typeof value === "object") return value.sort ?? value.text ?? value.done ?? "";
    return value ?? "";
  }

  function drawHead() {
    const row = document.createElement("tr");
    row.setAttribute("role", "row");
    for (const column of model.columns) {
      const cell = document.createElement("th");
      cell.scope = "col";
      cell.setAttribute("role", "columnheader");
      cell.tabIndex = 0;
      cell.className = column.kind === "number" ? "number" : "";
      if (column.width) cell.style.width = column.width;
      const mark = sort.key === column.key ? (sort.down ? " ▾" : " ▴") : "";
      cell.textContent = column.label + mark;
      cell.setAttribute("aria-sort", mark ? (sort.down ? "descending" : "ascending") : "none");
      const toggle = () => {
        sort = sort.key !== column.key ? { key: column.key, down: false }
          : sort.down ? { key: null, down: false } : { key: column.key, down: true };
        drawHead();
        drawBody();
      };
      cell.addEventListener("click", toggle);
      cell.addEventListener("keydown", (event) => { if (event.key === "Enter") toggle(); });
      row.append(cell);
    }
    head.replaceChildren(row);
    caption.textContent = model.label;
  }

  function fill(cell, column, value) {
    cell.className = `k-${column.kind || "text"}`;
    if (value === null || value === undefined || value === "") {
      cell.textContent = "–";
      cell.classList.add("none");
      return;
    }
    if (column.kind === "pill") {
      const pill = document.createElement("span");
      pill.className = "pill";
      pill.style.setProperty("--pill", value.colour);
      pill.textContent = value.text;
      cell.append(pill);
    } else if (column.kind === "progress") {
      if (value.total !== null) { // a bar of a total that grows would go backwards
        const bar = document.createElement("span");
        bar.className = "bar";
        const inner = document.createElement("i");
        inner.style.width = `${value.total ? Math.min(100, (100 * value.done) / value.total) : 0}%`;
        bar.append(inner);
        cell.append(bar);
      }
      const text = document.createElement("small");
      text.textContent = value.text;
      cell.append(text);
    } else {
      cell.textContent = typeof value === "object" ? value.text : String(value);
      if (typeof value === "object" && value.title) cell.title = value.title;
      else if (column.clip) cell.title = cell.textContent;
    }
  }

  function choose(id) {
    model.selected = model.selected === id && model.toggle ? "" : id;
    mark();
  }

  function mark() {
    for (const row of body.children) {
      const on = row.dataset.id !== undefined && row.dataset.id === model.selected;
      row.classList.toggle("selected", on);
      row.setAttribute("aria-selected", on);
    }
  }

  // A row stays the same element while its data changes, or a click that is under way would be lost.
  function newRow(id) {
    const row = document.createElement("tr");
    row.dataset.id = id;
    row.setAttribute("role", "row");
    for (const column of model.columns) {
      const cell = document.createElement("td");
      cell.dataset.label = column.label;
      cell.setAttribute("role", "gridcell");
      row.append(cell);
    }
    if (model.selectable) {
      row.tabIndex = 0;
      row.addEventListener("click", () => choose(id));
      row.addEventListener("keydown", (event) => {
        if (event.key === "Enter" || event.key === " ") { event.preventDefault(); choose(id); }
        if (event.key === "ArrowDown") { event.preventDefault(); row.nextElementSibling?.focus(); }
        if (event.key === "ArrowUp") { event.preventDefault(); row.previousElementSibling?.focus(); }
      });
    }
    return { row, shown: [] };
  }

  function drawBody() {
    const rows = JSON.parse(model.data);
    if (sort.key !== null) {
      rows.sort((a, b) => {
        const x = sortValue(a, sort.key), y = sortValue(b, sort.key);
        const order = typeof x === "number" && typeof y === "number" ? x - y : String(x).localeCompare(String(y));
        return sort.down ? -order : order;
      });
    }
    const focused = el.getRootNode().activeElement?.dataset?.id;
    const before = kept;
    kept = new Map();
    const drawn = rows.map((data) => {
      const known = kept.has(data.id) ? undefined : before.get(data.id);
      const { row, shown } = known ?? newRow(data.id);
      kept.set(data.id, { row, shown });
      model.columns.forEach((column, index) => {
        const value = JSON.stringify(data[column.key] ?? null);
        if (shown[index] === value) return;
        shown[index] = value;
        const cell = row.children[index];
        cell.replaceChildren();
        cell.removeAttribute("title");
        fill(cell, column, data[column.key]);
      });
      return row;
    });
    if (!rows.length) {
      const row = document.createElement("tr");
      const cell = document.createElement("td");
      cell.colSpan = model.columns.length;
      cell.className = "empty";
      cell.textContent = model.empty;
      row.append(cell);
      drawn.push(row);
    }
    drawn.forEach((row, index) => {
      if (body.children[index] !== row) body.insertBefore(row, body.children[index] ?? null);
    });
    while (body.children.length > drawn.length) body.lastElementChild.remove();
    const [lastBefore, last] = [[...before.keys()].at(-1), rows.at(-1)?.id];
    if (last !== undefined && !before.has(last) && !kept.has(lastBefore)) wrap.scrollTop = 0; // another part
    if (focused && el.getRootNode().activeElement?.dataset?.id !== focused) {
      [...body.children].find((row) => row.dataset.id === focused)?.focus();
    }
    note.textContent = model.note;
    wrap.classList.toggle("selectable", model.selectable);
    mark();
  }

  model.on("columns", () => { kept = new Map(); drawHead(); drawBody(); });
  model.on("selectable", () => { kept = new Map(); drawBody(); });
  model.on("data", drawBody);
  model.on("note", () => { note.textContent = model.note; });
  model.on("empty", drawBody);
  model.on("selected", mark);
  drawHead();
  drawBody();
  return wrap;
}
