// Dead letters, grouped by error, and their redrive.

import { call, get, part } from "./api.js";
import { ask, choice, el, field, fill, heading, nothing, notice, problem } from "./dom.js";
import { clock, count } from "./format.js";
import { current, onSnapshot } from "./live.js";
import { messageTable } from "./messages.js";

const LOOKED_AT = 1000;

export async function deadLettersPage(content, { subject, signal }) {
  const all = (await current()).subscriptions;
  if (signal.aborted) return;
  const origins = all.filter((one) => one.dead > 0 || one.name === subject).sort((a, b) => b.dead - a.dead);
  if (subject && !origins.some((one) => one.name === subject)) origins.unshift({ name: subject, dead: null });
  content.append(...heading("Dead letters", "Messages that failed too often. Redrive sends them back to their queue or subscription; a dry run counts them first."));
  if (!origins.length) {
    const hint = nothing("No dead letters.");
    content.append(hint);
    signal.addEventListener("abort", onSnapshot((snapshot) => {
      if (snapshot.subscriptions.some((one) => one.dead) && hint.isConnected) { fill(content); deadLettersPage(content, { subject, signal }); }
    }));
    return;
  }
  const chosen = choice(origins.map(({ name, dead }) => [name, dead === null ? name : `${name} (${count(dead)})`]), subject || origins[0].name);
  const out = el("div");
  const look = () => show(out, chosen.value).catch((error) => fill(out, problem(error)));
  chosen.addEventListener("change", look);
  content.append(el("div", { class: "row" }, field("Queue or subscription", chosen), el("button", { type: "button", class: "quiet", onclick: look }, "Refresh")), out);
  await look();
}

async function show(place, name) {
  const info = await get(`/subscriptions/${part(name)}`);
  const letters = info.settings.dead_letter || `${name}.dlq`;
  const found = await get(`/subscriptions/${part(letters)}/peek`, { batch_size: LOOKED_AT });
  const details = await get(`/topics/${part(letters)}/messages`, { batch_size: LOOKED_AT });
  const pending = new Set(found.messages.map((one) => one.id));
  const messages = details.messages.filter((one) => pending.has(one.id) && (!one.dead_letter || one.dead_letter.origin_subscription === name));
  const told = el("p", { class: "hint", role: "status" });
  const again = () => show(place, name).catch((error) => fill(place, problem(error)));
  const groups = groupsOf(messages).map(({ error, messages: of }) => el("tr", {},
    el("td", { class: "number" }, count(of.length)), el("td", { class: "wrap" }, error ?? "(no error text)"),
    el("td", {}, clock(of[0].timestamp)), el("td", { class: "action" }, el("div", { class: "actions" }, buttons(name, error, told, again)))));
  fill(place,
    el("h2", {}, "By error"),
    groups.length ? el("div", { class: "scroll" }, el("table", { class: "groups" },
      el("thead", {}, el("tr", {}, ["Messages", "Error", "Newest", ""].map((title, column) => el("th", { scope: "col", class: ["number", null, null, "action"][column] }, title)))),
      el("tbody", {}, groups))) : nothing("No dead letters."),
    messages.length >= LOOKED_AT && el("p", { class: "hint" }, `Only the newest ${count(LOOKED_AT)} are shown.`),
    told, el("div", { class: "row middle" }, el("span", {}, "All dead letters:"), buttons(name, undefined, told, again)),
    el("h2", {}, "Messages"), messageTable(messages, "No dead letters."));
}

function groupsOf(messages) {
  const groups = new Map();
  for (const message of messages) {
    const error = message.dead_letter?.last_error ?? null;
    if (!groups.has(error)) groups.set(error, []);
    groups.get(error).push(message);
  }
  return [...groups].map(([error, of]) => ({ error, messages: of })).sort((a, b) => b.messages.length - a.messages.length);
}

// `error` is undefined for all of them, null for those without one.
function buttons(name, error, told, again) {
  const filter = error === undefined ? null : error === null ? "last_error is null" : `last_error = '${error.replaceAll("'", "''")}'`;
  const path = `/subscriptions/${part(name)}/redrive`;
  const send = el("button", { type: "button", disabled: true, onclick: () => redrive() }, "Redrive…");
  let counted = 0;
  const dry = async () => {
    try {
      counted = (await call("POST", path, { dry_run: true, filter })).messages;
      told.textContent = `A redrive would send ${count(counted)} messages back${error ? ` that failed with “${error}”` : ""}.`;
      send.disabled = counted === 0;
    } catch (failure) { notice(failure.message, true); }
  };
  const redrive = async () => {
    if (!await ask(`Redrive ${count(counted)} messages?`, `They go back to ${name} and are delivered again.`, "Redrive")) return;
    try {
      notice(`${count((await call("POST", path, { filter })).messages)} messages were sent back.`);
      await again();
    } catch (failure) { notice(failure.message, true); }
  };
  return [el("button", { type: "button", class: "quiet", onclick: dry }, "Dry run"), send];
}
