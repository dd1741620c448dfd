// A form for settings, out of their schema. It gives what was filled in, and shows an error at its field.

import { choice, el, fill, problem } from "./dom.js";
import { text } from "./settings.js";
import { settingsIn } from "./schema.js";

const BY_CODE = { invalid_filter: "filter" };

// `first` names the settings that are shown at once; the others are folded away. Without `values` it is
// for something new: what stays empty has its default.
export async function settingsForm(schema, { values, first = [], leave = [] }) {
  const settings = (await settingsIn(schema)).filter(({ name }) => !leave.includes(name));
  const single = settings.flatMap((one) => one.settings ?? [one]);
  const fields = new Map(single.map((one) => [one.name, field(one, values)]));
  const above = first.map((name) => fields.get(name)).filter(Boolean);
  const told = el("div");
  const folded = el("details", {}, el("summary", {}, "All settings"), el("div", { class: "settings-form" }, settings.map((one) => section(one, fields, first))));
  return {
    element: el("div", { class: "settings-form" }, told, above.map(({ element }) => element), folded),
    values: () => collect(settings, fields, values),
    fail(error) {
      for (const one of fields.values()) one.clear();
      const at = fields.get(error.field ?? BY_CODE[error.code]);
      if (!at) return fill(told, problem(error));
      fill(told);
      if (folded.contains(at.element)) folded.open = true;
      return at.fail(error.message);
    },
  };
}

function section(setting, fields, first) {
  const inner = (setting.settings ?? [setting]).filter(({ name }) => !first.includes(name)).map(({ name }) => fields.get(name).element);
  if (!setting.settings || !inner.length) return inner;
  return [el("fieldset", {}, el("legend", {}, setting.label), setting.about && el("p", { class: "hint" }, setting.about), inner)];
}

const current = (name, values) => name.split(".").reduce((value, part) => value?.[part], values);

function field(setting, values) {
  const { name, label, about, kind, choices, unit, without, standard, isOptional, isSecret, example } = setting;
  const id = `setting-${name}`, was = values === undefined ? undefined : current(name, values);
  const rest = without || (standard === "null" ? "" : standard) || (example ?? "");
  const attributes = { id, name, "aria-describedby": `${id}-about`, autocomplete: "off", spellcheck: "false" };
  let input;
  if (kind === "choice") {
    const empty = values === undefined || isOptional ? [["", rest ? `default (${rest})` : "default"]] : [];
    input = choice([...empty, ...choices], was ?? "", attributes);
  } else if (kind === "check") input = el("input", { ...attributes, type: "checkbox", checked: was ?? standard === "true" });
  else if (isSecret) input = el("input", { ...attributes, type: "password", autocomplete: "new-password" });
  else input = el("input", { ...attributes, type: "text", inputmode: kind === "number" ? "decimal" : null, value: text(was, setting), placeholder: rest });
  const before = kind === "check" ? input.checked : input.value;
  const wrong = el("div", { class: "wrong", id: `${id}-wrong`, role: "alert" });
  const caption = kind === "number" && unit ? `${label} (${{ s: "seconds", ms: "milliseconds", bytes: "bytes" }[unit]})` : label;
  const element = el("div", { class: kind === "check" ? "field check-field" : "field" }, el("label", { for: id }, caption), input,
    el("div", { class: "hint", id: `${id}-about` }, about), wrong);
  return {
    element,
    isChanged: () => (kind === "check" ? input.checked : input.value.trim()) !== before,
    isEmpty: () => kind !== "check" && !input.value.trim(),
    value: () => valueOf(setting, input),
    clear() { wrong.textContent = ""; input.removeAttribute("aria-invalid"); },
    fail(message) { wrong.textContent = message; input.setAttribute("aria-invalid", "true"); input.focus(); },
  };
}

function valueOf({ kind }, input) {
  const typed = input.value.trim();
  if (kind === "check") return input.checked;
  if (!typed) return null;
  if (kind === "list") return typed.split(/[\s,]+/);
  return (kind === "number" || kind === "measure") && Number.isFinite(Number(typed)) ? Number(typed) : typed;
}

// Only what was changed. A group that may be missing is taken away when all its fields are emptied.
function collect(settings, fields, values) {
  const given = {};
  for (const one of settings) {
    const inner = one.settings ?? [one];
    const changed = inner.filter(({ name }) => fields.get(name).isChanged());
    if (!changed.length) continue;
    if (!one.settings) given[one.name] = fields.get(one.name).value();
    else if (one.isOptional && inner.filter(({ isRequired }) => isRequired).every(({ name }) => fields.get(name).isEmpty())) given[one.name] = null;
    else {
      const wanted = one.isOptional ? inner.filter((each) => changed.includes(each) || !fields.get(each.name).isEmpty()) : changed;
      given[one.name] = Object.fromEntries(wanted.map(({ name }) => [name.slice(one.name.length + 1), fields.get(name).value()]));
    }
  }
  if (values === undefined) for (const [name, value] of Object.entries(given)) if (value === null) delete given[name];
  return given;
}
