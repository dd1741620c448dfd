// How far back charts go: a choice that this browser remembers.

import { el } from "./dom.js";

const SPANS = [["5m", "5 minutes", 300_000], ["1h", "1 hour", 3_600_000]];
const KEPT_AS = "quiver.span";

const chosen = () => SPANS.find(([key]) => key === localStorage.getItem(KEPT_AS)) || SPANS[1];
export const span = () => chosen()[2];

export function spanChoice() {
  const buttons = SPANS.map(([key, title]) => el("button", { type: "button", onclick: () => choose(key) }, title));
  const mark = () => buttons.forEach((button, place) => button.setAttribute("aria-pressed", String(SPANS[place] === chosen())));
  const choose = (key) => { localStorage.setItem(KEPT_AS, key); mark(); dispatchEvent(new Event("quiver:span")); };
  mark();
  return el("div", { class: "segments", role: "group", "aria-label": "Time shown in charts" }, buttons);
}
