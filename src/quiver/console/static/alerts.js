// Firing and recently cleared alerts; every page shows a badge with the number that are firing.

import { get } from "./api.js";
import { el, fill, heading, mark, nothing } from "./dom.js";
import { moment } from "./format.js";
import { placeOf } from "./names.js";

const EVERY_MS = 2000;
const listeners = new Set();
let alerts = null;
let timer = null;

export const badge = el("span", { class: "count", hidden: true });

export async function watchAlerts() {
  clearTimeout(timer);
  try {
    alerts = await get("/alerts");
    badge.hidden = alerts.firing.length === 0;
    badge.textContent = String(alerts.firing.length);
    badge.setAttribute("aria-label", `${alerts.firing.length} firing`);
    for (const listener of listeners) listener();
  } catch (error) {
    if (error.status === 401) return; // whoever signs in starts this again
  }
  timer = setTimeout(watchAlerts, EVERY_MS);
}

export function alertsPage(content, { signal }) {
  const firing = el("div"), recent = el("div");
  content.append(...heading("Alerts", "Alerts that are firing, and those that cleared recently."), el("h2", {}, "Firing"), firing, el("h2", {}, "Recently cleared"), recent);
  const draw = () => {
    fill(firing, list(alerts?.firing || [], alerts ? "No alerts are firing." : "Loading …"));
    fill(recent, list(alerts?.recent || [], "None."));
  };
  draw();
  listeners.add(draw);
  signal.addEventListener("abort", () => listeners.delete(draw));
}

function list(found, empty) {
  if (!found.length) return nothing(empty);
  const rows = found.map((one) => el("tr", {}, el("td", {}, mark(one.severity)), el("td", {}, one.rule), el("td", {}, el("a", { href: placeOf(one) }, one.subject || one.node || "this node")),
    el("td", { class: "wrap" }, one.summary), el("td", {}, moment(one.since_us / 1000)), el("td", {}, one.until_us ? moment(one.until_us / 1000) : "—")));
  const titles = ["Severity", "Rule", "Subject", "Summary", "Since", "Until"];
  return el("div", { class: "scroll" }, el("table", {}, el("thead", {}, el("tr", {}, titles.map((title) => el("th", { scope: "col" }, title)))), el("tbody", {}, rows)));
}
