// The page at /docs: a queue to try, and every path of the node.

import { get, token } from "./api.js";
import { button, el, fill, problem } from "./dom.js";
import { operation } from "./operations.js";
import { themeButton } from "./theme_button.js";
import { payload } from "./tree.js";

const TITLES = { queues: "Queues", topics: "Topics", subscriptions: "Subscriptions", tokens: "Tokens", node: "Node" };
const at = (id) => document.getElementById(id);
const path = (rest = "") => `/queues/${encodeURIComponent(at("queue").value)}${rest}`;
const say = (text) => { at("status").textContent = text; };

async function ask(method, url, body) {
  const headers = body === undefined ? {} : { "Content-Type": "application/json" };
  const given = at("token").value || token.get();
  if (given) headers.Authorization = `Bearer ${given}`;
  const reply = await fetch(url, { method, headers, body });
  const text = await reply.text();
  const told = text ? JSON.parse(text) : null;
  if (!reply.ok) throw new Error(`${reply.status} ${told.code}: ${told.detail}`);
  return told;
}

const act = (work) => async () => {
  try { say(await work()); } catch (error) { say(error.message); }
};
const on = (id, work) => at(id).addEventListener("click", act(work));

on("create", async () => { await ask("PUT", path()); return "The queue is there."; });
on("send", async () => {
  const fields = [`"message": ${at("message").value}`];
  for (const name of ["priority", "delay"]) if (at(name).value !== "") fields.push(`${JSON.stringify(name)}: ${Number(at(name).value)}`);
  return `Stored as ${(await ask("POST", path("/messages"), `{${fields.join(", ")}}`)).id}.`;
});
on("receive", async () => {
  const { messages } = await ask("GET", path("/messages?batch_size=10&wait=1"));
  messages.forEach(show);
  return `${messages.length} received.`;
});

function show(message) {
  const rows = at("messages").querySelector("tbody");
  const remove = act(async () => {
    await ask("DELETE", path(`/messages/${encodeURIComponent(message.receipt_handle)}`));
    row.remove();
    at("messages").hidden = !rows.children.length;
    return "Deleted.";
  });
  const row = el("tr", {}, el("td", { class: "mono" }, message.id), el("td", { class: "wrap body" }, payload(message)), el("td", { class: "action" }, button("Delete", remove, "quiet")));
  rows.append(row);
  at("messages").hidden = false;
}

// The section that is read is marked in the navigation.
function mark() {
  const above = [...document.querySelectorAll("section[id]")].filter((one) => one.getBoundingClientRect().top < 140);
  const read = `#${above.at(-1)?.id ?? "try"}`;
  for (const link of document.querySelectorAll("#nav a")) {
    if (link.hash === read) link.setAttribute("aria-current", "true");
    else link.removeAttribute("aria-current");
  }
}

async function list() {
  const { paths, components: { schemas } } = await get("/openapi.json");
  const tags = new Map(Object.keys(TITLES).map((tag) => [tag, []]));
  for (const [url, methods] of Object.entries(paths)) for (const [method, told] of Object.entries(methods)) {
    const [tag] = told.tags;
    if (!tags.has(tag)) tags.set(tag, []);
    tags.get(tag).push(operation(method, url, told, schemas));
  }
  const title = (tag) => TITLES[tag] ?? tag;
  fill(at("paths"), [...tags].map(([tag, found]) => el("section", { class: "tag", id: tag }, el("h2", {}, title(tag)), found)));
  fill(at("nav"), el("a", { href: "#try" }, "Try a queue"), [...tags].map(([tag, found]) => el("a", { href: `#${tag}` }, title(tag), el("span", { class: "soft" }, String(found.length)))));
  mark();
  at(location.hash.slice(1))?.scrollIntoView();
}

themeButton(at("theme"));
addEventListener("scroll", mark, { passive: true });
list().catch((error) => fill(at("paths"), problem(error)));
