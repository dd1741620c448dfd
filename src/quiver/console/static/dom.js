// Elements made by name. Text is set as text: nothing that comes from a message is ever markup.

export function el(name, attributes = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (value === undefined || value === null || value === false) continue;
    if (key.startsWith("on")) made.addEventListener(key.slice(2), value);
    else if (key === "value") made.value = value;
    else made.setAttribute(key, value === true ? "" : value);
  }
  made.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== false));
  return made;
}

export function fill(element, ...children) {
  element.replaceChildren(...children.flat(Infinity).filter(Boolean));
  return element;
}

export function heading(title, about) {
  return [el("h1", {}, title), el("p", { class: "about", hidden: !about }, about || "")];
}

// A heading with buttons beside it.
export function head(title, about, ...actions) {
  return el("div", { class: "head" }, el("div", {}, heading(title, about)), el("div", { class: "actions" }, actions));
}

export const button = (title, act, kind) => el("button", { type: "button", class: kind, onclick: act }, title);

export function mark(word) {
  return el("span", { class: `mark ${word.replace(/[^a-z-]/g, "")}` }, word);
}

export function facts(pairs) {
  const known = pairs.filter(([, value]) => value !== null && value !== undefined && value !== "");
  return el("dl", { class: "facts" }, known.flatMap(([name, value]) => [el("dt", {}, name), el("dd", {}, value)]));
}

export function field(label, control) {
  return el("label", {}, label, control);
}

const options = (values, chosen) => values.map((value) => {
  const [key, text] = Array.isArray(value) ? value : [value, value];
  return el("option", { value: key, selected: key === chosen }, text);
});

export const choice = (values, chosen, attributes = {}) => el("select", attributes, options(values, chosen));

// The same with headings: `groups` are [heading, values]; those without values are left out.
export function groupedChoice(groups, chosen, attributes = {}) {
  const shown = groups.filter(([, values]) => values.length);
  return el("select", attributes, shown.map(([heading, values]) => el("optgroup", { label: heading }, options(values, chosen))));
}

export function nothing(...children) {
  return el("div", { class: "scroll" }, el("div", { class: "empty" }, children));
}

// Words shown for a moment at the edge of the page.
export function notice(text, isBad = false) {
  const shown = el("div", { class: isBad ? "notice bad" : "notice" }, text);
  document.getElementById("notices").append(shown);
  setTimeout(() => shown.remove(), 6000);
}

export function problem(error) {
  return el("div", { class: "problem", role: "alert" }, error.message);
}

// Ask before something that cannot be undone; resolves to whether it shall be done.
export function ask(title, text, act) {
  return new Promise((resolve) => {
    const answer = (yes) => () => { dialog.close(); dialog.remove(); resolve(yes); };
    const dialog = el("dialog", { oncancel: answer(false), "aria-labelledby": "asked" },
      el("h2", { id: "asked" }, title), el("p", {}, text),
      el("div", { class: "row" },
        el("button", { class: "quiet", type: "button", autofocus: true, onclick: answer(false) }, "Cancel"),
        el("button", { class: "danger", type: "button", onclick: answer(true) }, act)));
    document.body.append(dialog);
    dialog.showModal();
  });
}
