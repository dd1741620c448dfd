// A dialog with a form that stays open until the node has accepted it, and one that asks before a deletion.

import { el, fill, problem } from "./dom.js";

// `save` returns what the sheet resolves to; an error goes to `fail`, or is shown above the buttons.
// Resolves to null if the reader leaves.
export function sheet(title, body, act, save, { fail, isDanger = false, mayLeave = true } = {}) {
  const opener = document.activeElement;
  return new Promise((resolve) => {
    const told = el("div"), submit = el("button", { type: "submit", class: isDanger ? "danger" : null }, act);
    const end = (value) => { dialog.close(); dialog.remove(); if (opener?.isConnected) opener.focus(); resolve(value); };
    const send = async (event) => {
      event.preventDefault();
      submit.disabled = true;
      fill(told);
      try {
        end(await save());
      } catch (error) {
        if (fail) fail(error); else fill(told, problem(error));
      } finally { submit.disabled = false; }
    };
    const dialog = el("dialog", { class: "sheet", oncancel: () => end(null), "aria-labelledby": "sheet-title" },
      el("form", { onsubmit: send }, el("h2", { id: "sheet-title" }, title), el("div", { class: "sheet-body" }, body), told,
        el("div", { class: "row" }, mayLeave && el("button", { class: "quiet", type: "button", onclick: () => end(null) }, "Cancel"), submit)));
    document.body.append(dialog);
    dialog.showModal();
    dialog.querySelector("input, select, textarea")?.focus();
  });
}

// Asks for the name of what holds messages, so that nobody deletes it by habit.
export function confirmDelete({ title, text, name, mustType, also, remove }) {
  const typed = el("input", { id: "typed-name", autocomplete: "off", spellcheck: "false" });
  const body = [el("p", {}, text), also && el("label", { class: "check" }, also.input, also.label),
    mustType && el("div", { class: "field" }, el("label", { for: "typed-name" }, `Type ${name} to confirm`), typed)];
  const save = async () => {
    if (mustType && typed.value.trim() !== name) throw new Error(`Type ${name} to confirm.`);
    await remove();
    return true;
  };
  return sheet(title, body.filter(Boolean), "Delete", save, { isDanger: true });
}
