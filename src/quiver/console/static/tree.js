// A message's payload: JSON as a tree that opens and closes, anything else as text or bytes.

import { el } from "./dom.js";

const ITEMS_MAX = 200;
const OPEN_DEPTH = 2;

export function tree(value) {
  return el("div", { class: "tree" }, branch(null, value, 0));
}

function branch(name, value, depth) {
  const label = name === null ? [] : [el("span", { class: "name" }, String(name)), ": "];
  if (value === null || typeof value !== "object") return el("div", {}, label, leaf(value));
  const entries = Array.isArray(value) ? value.map((one, place) => [place, one]) : Object.entries(value);
  const about = Array.isArray(value) ? `[${entries.length}]` : `{${entries.length}}`;
  const whole = el("details", { open: depth < OPEN_DEPTH }, el("summary", {}, label, about));
  // What is closed is made when it is opened: a large value costs nothing until then.
  const open = () => {
    if (whole.dataset.made) return;
    whole.dataset.made = "yes";
    whole.append(...entries.slice(0, ITEMS_MAX).map(([key, one]) => branch(key, one, depth + 1)));
    if (entries.length > ITEMS_MAX) whole.append(el("div", { class: "hint" }, `and ${entries.length - ITEMS_MAX} more`));
  };
  if (depth < OPEN_DEPTH) open();
  else whole.addEventListener("toggle", open);
  return whole;
}

function leaf(value) {
  if (typeof value === "string") return el("span", { class: "text" }, JSON.stringify(value));
  if (typeof value === "number") return el("span", { class: "number-value" }, String(value));
  return el("span", { class: "word" }, String(value));
}

export function payload(message) {
  if (message.encoding !== "base64") return tree(message.body);
  const text = decoded(message.body);
  if (text !== null) return el("pre", {}, text);
  return el("div", {}, el("p", { class: "hint" }, "Binary data, as base64:"), el("pre", {}, message.body.slice(0, 4000)));
}

export function preview(message) {
  const text = message.encoding === "base64" ? decoded(message.body) ?? message.body : JSON.stringify(message.body);
  return text.length > 120 ? `${text.slice(0, 120)}…` : text;
}

function decoded(base64) {
  const bytes = Uint8Array.from(atob(base64), (letter) => letter.charCodeAt(0));
  try {
    const text = new TextDecoder("utf-8", { fatal: true }).decode(bytes);
    return /[\0-\x08\x0e-\x1f]/.test(text) ? null : text;
  } catch {
    return null;
  }
}
