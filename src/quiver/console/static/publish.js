// Publish a test message.

import { call, part } from "./api.js";
import { button, choice, el, field, fill, heading, nothing, problem } from "./dom.js";
import { current } from "./live.js";
import { isOwn } from "./names.js";
import { createQueue } from "./queue_admin.js";

export async function publishPage(content, { subject, signal }) {
  const topics = (await current()).topics.filter(isOwn).map(({ name }) => name);
  if (signal.aborted) return;
  if (subject && !topics.includes(subject)) topics.push(subject);
  const topic = choice(topics, subject || topics[0], { required: true });
  const body = el("textarea", { spellcheck: "false", required: true, "aria-label": "Message" }, '{\n  "hello": "world"\n}');
  const kind = choice([["json", "JSON"], ["text", "text"]], "json");
  const input = (attributes) => el("input", { class: "small", autocomplete: "off", ...attributes });
  const key = input({}), priority = input({ type: "number", min: "0", max: "9", placeholder: "4" }), delay = input({ placeholder: "10s" });
  const headers = el("input", { autocomplete: "off", placeholder: "region=eu, source=test" });
  const out = el("div", { role: "status" });
  const send = async (event) => {
    event.preventDefault();
    try {
      const told = await call("POST", `/topics/${part(topic.value)}/messages`, message());
      fill(out, el("div", { class: "card" }, "Stored in partition ", String(told.partition), " at offset ", String(told.offset), ". ",
        el("a", { href: `#/messages/${part(topic.value)}` }, "Show the topic's messages"), el("div", { class: "mono hint" }, told.id)));
    } catch (error) { fill(out, problem(error)); }
  };
  const message = () => {
    const made = { message: kind.value === "json" ? parsed(body.value) : base64(body.value) };
    if (kind.value === "text") made.encoding = "base64";
    if (key.value) made.key = key.value;
    if (priority.value) made.priority = Number(priority.value);
    if (delay.value) made.delay = delay.value;
    if (headers.value.trim()) made.headers = pairs(headers.value);
    return made;
  };
  content.append(...heading("Publish a test message", "It is stored and delivered like any other message."),
    topics.length ? el("form", { class: "publish", onsubmit: send },
      el("div", { class: "row" }, field("Topic", topic), field("Format", kind)), body,
      el("div", { class: "row" }, field("Key", key), field("Priority", priority), field("Delay", delay), field("Headers", headers)),
      el("div", {}, el("button", { type: "submit" }, "Publish")), out)
      : nothing(el("p", {}, "There is no topic to publish to yet."), button("Create a queue", () => createQueue({ then: "publish" }))));
}

function parsed(text) {
  try { return JSON.parse(text); } catch (error) { throw new Error(`The message is not valid JSON: ${error.message}`); }
}

function base64(text) {
  return btoa(String.fromCharCode(...new TextEncoder().encode(text)));
}

function pairs(text) {
  return Object.fromEntries(text.split(",").map((one) => one.split("=").map((side) => side.trim())).map(([name, ...rest]) => [name, rest.join("=")]));
}
