// A table that can be sorted and searched, and is refreshed without losing the focus.

import { el, fill } from "./dom.js";

const ROWS_MAX = 500;

// `columns` are {title, value(row), show?(row), number?, wrap?, action?}; `key(row)` tells rows apart. `aside` is
// {label, has(row)}: such rows are shown when the reader asks for them or searches.
export function table(columns, { key, sort = 0, descending = false, search = true, empty = "No rows.", caption, aside }) {
  let rows = [], word = "", isAll = false;
  const body = el("tbody"), kept = new Map();
  const heads = columns.map((column, place) => el("th", { scope: "col", class: kindOf(column) }, column.title &&
    el("button", { type: "button", onclick: () => { descending = place === sort ? !descending : Boolean(column.number); sort = place; draw(); } }, column.title)));
  const none = el("div", { class: "empty" }, empty);
  const shown = el("table", {}, caption && el("caption", { hidden: true }, caption), el("thead", {}, el("tr", {}, heads)), body);
  const box = el("input", { type: "search", placeholder: "Search by name", "aria-label": "Search by name",
    oninput: (event) => { word = event.target.value.toLowerCase(); draw(); } });
  const all = el("label", { class: "check", hidden: true }, el("input", { type: "checkbox", onchange: (event) => { isAll = event.target.checked; draw(); } }), aside?.label);
  const whole = el("div", {}, search && el("div", { class: "row middle" }, box, all), el("div", { class: "scroll", tabindex: "0" }, shown, none));

  function draw() {
    const { value } = columns[sort];
    all.hidden = !aside || !rows.some(aside.has);
    const wanted = rows.filter((row) => !word ? isAll || !aside?.has(row) : String(key(row)).toLowerCase().includes(word));
    wanted.sort((one, other) => {
      const [a, b] = [value(one) ?? -1, value(other) ?? -1];
      return (a < b ? -1 : a > b ? 1 : String(key(one)).localeCompare(String(key(other)))) * (descending ? -1 : 1);
    });
    heads.forEach((head, place) => (place === sort ? head.setAttribute("aria-sort", descending ? "descending" : "ascending") : head.removeAttribute("aria-sort")));
    const lines = wanted.slice(0, ROWS_MAX).map(line);
    if (lines.length !== body.children.length || lines.some((one, place) => one !== body.children[place])) {
      const focused = body.contains(document.activeElement) ? document.activeElement : null;
      fill(body, lines);
      if (focused?.isConnected) focused.focus({ preventScroll: true });
    }
    none.hidden = lines.length > 0;
    shown.hidden = lines.length === 0;
  }

  // A row's cells are kept, and only their text changes: links in them stay where the reader is.
  function line(row) {
    const name = key(row);
    let cells = kept.get(name);
    if (!cells) {
      cells = columns.map((column) => el("td", { class: kindOf(column) }));
      kept.set(name, cells);
      cells.line = el("tr", {}, cells);
    }
    columns.forEach((column, place) => {
      const next = column.show ? column.show(row) : String(value(column, row));
      const text = typeof next === "string" ? next : next.textContent;
      if (cells[place].firstChild === null || cells[place].textContent !== text) fill(cells[place], next);
    });
    return cells.line;
  }

  return { element: whole, update(next) { rows = next; for (const name of kept.keys()) if (!next.some((row) => key(row) === name)) kept.delete(name); draw(); } };
}

const kindOf = ({ number, wrap, action }) => (number ? "number" : wrap ? "wrap" : action ? "action" : null);
const value = (column, row) => column.value(row) ?? "—";
