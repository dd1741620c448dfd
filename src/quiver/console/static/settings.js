// Settings as a person reads them: a name, a value and what it means.

import { el } from "./dom.js";
import { count, duration, size } from "./format.js";
import { settingsIn } from "./schema.js";

// A value as it could be typed into a form.
export function text(value, { unit, kind }) {
  if (value === null || value === undefined) return "";
  if (Array.isArray(value)) return value.join(", ");
  if (typeof value !== "number") return String(value);
  return unit === "s" && kind === "measure" ? duration(value) : String(value);
}

function shown(value, setting) {
  if (value === null || value === undefined) return el("span", { class: "soft" }, setting.without || "none");
  if (typeof value === "boolean") return value ? "yes" : "no";
  if (typeof value !== "number") return el("span", { class: setting.kind === "text" ? "mono" : null }, text(value, setting));
  return { s: duration(value), ms: `${count(value)} ms`, bytes: size(value) }[setting.unit] ?? count(value);
}

const SUMMARIES = {
  backoff: ({ min, max, factor }) => (max ? `${min ? duration(min) : "at once"}, then ${factor} times as long each time, up to ${duration(max)}` : "at once"),
};

// `special` shows some settings in its own way, by name; `leave` names those that are not shown.
export async function settingsCard(schema, values, { special = {}, leave = [] } = {}) {
  const rows = (await settingsIn(schema)).filter(({ name }) => !leave.includes(name)).flatMap((one) => lines(one, values[one.name], special));
  return el("div", { class: "card settings" }, el("dl", {}, rows.map(([label, value, about, name]) =>
    el("div", { "data-setting": name }, el("dt", {}, label), el("dd", {}, el("div", {}, value), el("div", { class: "hint" }, about))))));
}

function lines(setting, value, special) {
  const { name, label, about, settings } = setting;
  if (special[name]) return [[label, special[name](value), about, name]];
  if (!settings || value === null) return [[label, shown(value, setting), about, name]];
  if (SUMMARIES[name]) return [[label, SUMMARIES[name](value), about, name]];
  return settings.map((one) => [`${label}: ${one.label.toLowerCase()}`, shown(value[one.name.split(".").pop()], one), one.about, one.name]);
}
