// The message browser: messages of a topic, or pending ones of a queue, and the state of one message.

import { call, get, part } from "./api.js";
import { ask, choice, el, facts, field, fill, groupedChoice, heading, mark, nothing, notice, problem } from "./dom.js";
import { clock, count, moment, size } from "./format.js";
import { current } from "./live.js";
import { isInternal, isOwn } from "./names.js";
import { payload, preview } from "./tree.js";

const WAYS = [["newest", "Newest"], ["offset", "From an offset"], ["time", "From a time"], ["key", "By key"], ["id", "By id"]];

export async function messagesPage(content, { subject, query, signal }) {
  const queue = query.get("queue") || "";
  const groups = sourcesIn(await current());
  if (signal.aborted) return;
  const chosen = queue ? `queue:${queue}` : subject ? `topic:${subject}` : groups.flatMap(([, names]) => names)[0]?.[0] || "";
  if (chosen && !groups.some(([, names]) => names.some(([name]) => name === chosen))) groups.push(["Others", [[chosen, chosen.replace(":", " ")]]]);
  const source = groupedChoice(groups, chosen, { "aria-label": "Source" });
  const way = choice(WAYS, "newest");
  const state = choice([["", "Any state"], "ready", "leased", "delayed"], "");
  const what = el("input", { class: "small", type: "text", autocomplete: "off", spellcheck: "false" });
  const partition = el("input", { class: "small", type: "number", min: "0", placeholder: "all" });
  const whatField = field("Value", what), partitionField = field("Partition", partition), stateField = field("State", state), wayField = field("Show", way);
  const out = el("div");
  const adapt = () => {
    const isTopic = source.value.startsWith("topic:");
    wayField.hidden = !isTopic;
    stateField.hidden = isTopic;
    partitionField.hidden = !isTopic || way.value === "id";
    whatField.hidden = !isTopic || way.value === "newest";
    what.placeholder = { offset: "0", time: "-1h", key: "customer-7", id: "message id" }[way.value] || "";
  };
  const look = async (event) => {
    event?.preventDefault();
    if (!source.value) return fill(out, nothing("No topics yet."));
    try {
      const found = await search(source.value, way.value, what.value.trim(), partition.value, state.value);
      if (!signal.aborted) fill(out, found);
    } catch (error) {
      fill(out, problem(error));
    }
  };
  source.addEventListener("change", () => { adapt(); look(); });
  way.addEventListener("change", () => { adapt(); what.value = ""; (way.value === "newest" ? look() : what.focus()); });
  state.addEventListener("change", look);
  content.append(...heading("Messages", "Browsing does not consume messages."),
    el("form", { class: "row", onsubmit: look }, field("Source", source), wayField, whatField, partitionField, stateField, el("button", { type: "submit" }, "Search")), out);
  adapt();
  await look();
}

// The user's own topics come first, then their queues, then what only comes with them.
function sourcesIn({ topics, subscriptions }) {
  const topic = ({ name }) => [`topic:${name}`, name], queue = ({ name }) => [`queue:${name}`, `pending in ${name}`];
  return [["Topics", topics.filter(isOwn).map(topic)], ["Queues and subscriptions", subscriptions.filter(isOwn).map(queue)],
    ["Dead letters", topics.filter((row) => row.holds_dead_letters).map(topic)], ["Internal topics", topics.filter(({ name }) => isInternal(name)).map(topic)]];
}

async function search(source, way, what, partition, state) {
  const [kind, ...rest] = source.split(":"), name = rest.join(":");
  if (kind === "queue") return messageTable((await get(`/subscriptions/${part(name)}/peek`, { batch_size: 100, state })).messages, "No pending messages.");
  if (way === "id") {
    const found = await get(`/topics/${part(name)}/messages/${part(what)}`);
    if (!found.message) return nothing("The message was stored here. Retention has deleted it.");
    return messageTable([found.message], "");
  }
  const asked = { batch_size: 100, partition };
  if (way !== "newest") asked[way] = what;
  const found = await get(`/topics/${part(name)}/messages`, asked);
  const told = found.complete ? "" : `The search stopped after ${count(found.examined)} messages. Give a partition, or a later offset or time.`;
  return [messageTable(found.messages, "No messages found."), told && el("p", { class: "hint" }, told)];
}

// Messages on the left, the chosen one on the right. The arrow keys go from one to the next.
export function messageTable(messages, empty) {
  if (!messages.length) return nothing(empty);
  const detail = el("div", { class: "card detail", "aria-live": "polite" });
  const rows = messages.map((message) => {
    const row = el("tr", { class: "message-row", tabindex: "0", "aria-selected": "false" },
      el("td", {}, clock(message.timestamp)), el("td", { class: "number" }, `${message.partition}/${message.offset}`),
      el("td", { class: "mono" }, message.key ?? "—"), el("td", {}, el("div", { class: "preview" }, preview(message))));
    const choose = () => {
      for (const other of rows) other.setAttribute("aria-selected", String(other === row));
      showMessage(detail, message);
    };
    row.addEventListener("click", choose);
    row.addEventListener("focus", choose);
    row.addEventListener("keydown", (event) => {
      const next = { ArrowDown: row.nextElementSibling, ArrowUp: row.previousElementSibling }[event.key];
      if (next) { event.preventDefault(); next.focus(); }
    });
    return row;
  });
  const titles = ["Stored", "Partition/offset", "Key", "Payload"];
  const list = el("div", { class: "scroll" }, el("table", {},
    el("thead", {}, el("tr", {}, titles.map((title, place) => el("th", { scope: "col", class: place === 1 ? "number" : null }, title)))), el("tbody", {}, rows)));
  rows[0].setAttribute("aria-selected", "true");
  showMessage(detail, messages[0]);
  return el("div", { class: "split" }, list, detail);
}

function showMessage(place, message) {
  const fate = el("div", {}, el("p", { class: "hint" }, "Loading …"));
  const headers = Object.entries(message.headers || {});
  const dead = message.dead_letter;
  fill(place, el("h2", {}, "Message"),
    facts([["Id", el("span", { class: "mono" }, message.id)], ["Topic", message.topic], ["Position", `partition ${message.partition}, offset ${message.offset}`],
      ["Stored", moment(message.timestamp)], ["Key", message.key], ["Priority", message.priority === undefined ? null : String(message.priority)],
      ["Size", message.bytes === undefined ? null : size(message.bytes)], ["Event time", moment(message.event_time)], ["Deliver at", moment(message.deliver_at)],
      ["Expires", moment(message.expires_at)], ["Dedup id", message.dedup_id], ["State", message.state && mark(message.state)]]),
    dead && [el("h2", {}, "Dead letter"), facts([["Error", dead.last_error], ["Origin", `${dead.origin_topic}, partition ${dead.origin_partition}, offset ${dead.origin_offset}`],
      ["Subscription", dead.origin_subscription], ["Deliveries", String(dead.deliveries)], ["Last delivery", moment(dead.last_delivery)]])],
    headers.length > 0 && [el("h2", {}, "Headers"), facts(headers)],
    el("h2", {}, "Payload"), payload(message), el("h2", {}, "Delivery"), fate);
  get(`/topics/${part(message.topic)}/messages/${part(message.id)}`).then((found) => showFate(fate, message, found), (error) => fill(fate, problem(error)));
}

function showFate(place, message, { subscriptions }) {
  if (!subscriptions.length) return fill(place, el("p", { class: "hint" }, "This topic has no subscriptions."));
  const rows = subscriptions.map((one) => {
    const told = [one.deliveries && `${count(one.deliveries)} ${one.deliveries === 1 ? "delivery" : "deliveries"}`, one.consumer && `${one.at ? "by" : "held by"} ${one.consumer}`,
      one.until && `until ${moment(one.until)}`, one.at && `at ${moment(one.at)}`].filter(Boolean).join(", ");
    return el("tr", {}, el("td", { class: "wrap" }, el("a", { href: `#/queues/${part(one.subscription)}` }, one.subscription), el("div", { class: "hint" }, told)), el("td", { class: "number" }, mark(one.state)));
  });
  const isScheduled = subscriptions.some((one) => one.state === "delayed");
  const cancel = async () => {
    if (!await ask("Cancel this message?", "The message will not be delivered. This cannot be undone.", "Cancel the message")) return;
    try {
      const { messages } = await call("DELETE", `/topics/${part(message.topic)}/messages/${part(message.id)}`);
      notice(messages ? "The message is cancelled." : "It was already due, so it is not cancelled.");
    } catch (error) { notice(error.message, true); }
  };
  return fill(place, el("div", { class: "scroll" }, el("table", {}, el("tbody", {}, rows))),
    isScheduled && el("p", {}, el("button", { type: "button", class: "danger", onclick: cancel }, "Cancel…")));
}
