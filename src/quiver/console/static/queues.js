// Queues and subscriptions: depth, lag, consumers and actions.

import { call, get, part } from "./api.js";
import { ages, counts } from "./axes.js";
import { chart } from "./charts.js";
import { ask, button, el, fill, head, notice } from "./dom.js";
import { age, count, moment, rate } from "./format.js";
import { onSnapshot } from "./live.js";
import { isAside } from "./names.js";
import { past } from "./past.js";
import { alterQueue, createQueue, createSubscription, deleteQueue } from "./queue_admin.js";
import { settingsCard } from "./settings.js";
import { spanChoice } from "./span.js";
import { table } from "./table.js";

const number = (title, field, show = count) => ({ title, value: (row) => row[field], show: (row) => show(row[field]), number: true });

export const queueColumns = [
  { title: "Name", value: (row) => row.name, show: (row) => el("a", { href: `#/queues/${part(row.name)}` }, row.name) },
  { title: "Kind", value: (row) => (row.is_queue ? "queue" : "subscription") },
  number("Pending", "pending"),
  number("Ready", "ready"),
  number("Leased", "leased"),
  number("Delayed", "delayed"),
  { title: "Dead", value: (row) => row.dead, show: (row) => (row.dead ? el("a", { href: `#/dead/${part(row.name)}` }, count(row.dead)) : "0"), number: true },
  number("Oldest", "oldest_s", age),
  number("Finished", "rate", rate),
  number("Consumers", "consumers"),
];

export function queuesPage(content, { signal }) {
  const rows = table(queueColumns, { key: (row) => row.name, empty: "No queues or subscriptions yet.", aside: { label: "Show dead-letter queues", has: isAside } });
  const more = el("p", { class: "hint" });
  content.append(head("Queues and subscriptions", "Pending messages by state, and the age of the oldest.", button("New queue", () => createQueue()), button("New subscription", createSubscription, "quiet")), rows.element, more);
  signal.addEventListener("abort", onSnapshot((snapshot) => {
    rows.update(snapshot.subscriptions);
    more.textContent = snapshot.more_subscriptions ? `${count(snapshot.more_subscriptions)} more are not listed. Open any of them at #/queues/NAME.` : "";
  }));
}

export async function queuePage(content, { subject, signal }) {
  const path = `/subscriptions/${part(subject)}`;
  const info = await get(path);
  if (signal.aborted) return;
  const one = (snapshot) => snapshot.subscriptions.find((each) => each.name === subject);
  const history = past("subscriptions", signal, subject);
  const names = ["Pending", "Ready", "Leased", "Delayed", "Dead", "Oldest"];
  const values = names.map(() => el("dd", {}, "—"));
  const consumers = table(CONSUMERS, { key: (row) => row.name, search: false, empty: "There are no consumers." });
  const partitions = table(PARTITIONS, { key: (row) => `${row.topic}/${row.partition}`, search: false, empty: "There are no partitions." });
  const settings = el("div");
  const show = async () => fill(settings, await settingsOf(await get(path)));
  const alter = async () => { if (await alterQueue(await get(path))) { notice("The settings are saved."); await show(); } };
  const about = `${info.is_queue ? "Queue" : "Subscription"}, created ${moment(info.created).slice(0, 19)}`;
  content.append(head(subject, about, button("Edit settings…", alter, "quiet"), button("Purge…", () => purge(subject), "quiet bad"),
    button("Replay…", () => replay(subject), "quiet bad"), button("Delete…", () => deleteQueue(subject), "quiet bad")),
    el("div", { class: "links" },
      el("a", { href: `#/messages/?queue=${part(subject)}` }, "Browse messages"),
      el("a", { href: `#/dead/${part(subject)}` }, "Dead letters"),
      info.is_queue && el("a", { href: `#/publish/${part(subject)}` }, "Publish a test message"),
      info.is_queue && el("a", { href: `#/topics/${part(subject)}` }, "Topic of the queue")),
    el("dl", { class: "tiles" }, names.map((name, place) => el("div", { class: "tile" }, el("dt", {}, name), values[place]))),
    spanChoice(), el("div", { class: "charts" },
      chart("Depth by state", [["ready", "ready"], ["leased", "leased"], ["delayed", "delayed"], ["dead", "dead"]], counts, history, signal),
      chart("Age of the oldest pending message", [["age", "oldest_s"]], ages, history, signal)),
    el("h2", {}, "Partitions"), partitions.element, el("h2", {}, "Consumers"), consumers.element, settings);
  const refresh = (now) => { consumers.update(consumersOf(now)); partitions.update(now.partitions || []); };
  refresh(info);
  await show();
  if (signal.aborted) return;
  let looked = 0;
  signal.addEventListener("abort", onSnapshot(async (snapshot) => {
    const now = one(snapshot);
    if (now) [now.pending, now.ready, now.leased, now.delayed, now.dead].map(count).concat(age(now.oldest_s)).forEach((text, place) => { values[place].textContent = text; });
    if (snapshot.time_ms - looked < 2000) return;
    looked = snapshot.time_ms;
    const again = await get(path).catch(() => null);
    if (again && !signal.aborted) refresh(again);
  }));
}

const PARTITIONS = [
  { title: "Partition", value: (row) => `${row.topic}/${String(row.partition).padStart(6, "0")}`, show: (row) => `${row.topic}/${row.partition}` },
  number("Committed", "committed"),
  number("End", "end"),
  number("Lag", "lag"),
];

const CONSUMERS = [
  { title: "Consumer", value: (row) => row.name, show: (row) => row.name || "(no name)" },
  { title: "Partitions", value: (row) => row.partitions, wrap: true },
];

// Members of a group with their partitions; else the consumers that hold or wait for messages.
function consumersOf({ members, consumers }) {
  if (members) return Object.entries(members).map(([name, read]) => ({ name, partitions: read.join(", ") || "none" }));
  return (consumers || []).map((name) => ({ name, partitions: "any" }));
}

// How it delivers, and of a queue how its topic stores messages, for who may see that.
async function settingsOf({ name, is_queue: isQueue, settings }) {
  const special = { dead_letter: (topic) => lettersOf(name, topic), topics: topicLinks };
  const stored = isQueue && await get(`/topics/${part(name)}`).catch(() => null);
  return [el("h2", {}, "Delivery"), await settingsCard("SubscriptionChanges", settings, { special, leave: isQueue ? ["topics"] : [] }),
    stored && [el("h2", {}, "Storage"), await settingsCard("TopicFields", stored.settings)]];
}

const lettersOf = (subject, name) => el("a", { href: `#/dead/${part(subject)}` }, name ?? `${subject}.dlq`);
const topicLinks = (topics) => el("span", { class: "links" }, topics.map((one) => (one.includes("*") ? el("span", { class: "mono" }, one) : el("a", { href: `#/topics/${part(one)}` }, one))));

async function purge(name) {
  if (!await ask(`Purge ${name}?`, "All pending messages are discarded. This cannot be undone.", "Purge")) return;
  await attempt(async () => notice(`${count((await call("POST", `/subscriptions/${part(name)}/purge`, {})).messages)} messages were purged.`));
}

async function replay(name) {
  if (!await ask(`Replay ${name}?`, "All stored messages are delivered again, starting with the oldest.", "Replay")) return;
  await attempt(async () => { await call("POST", `/subscriptions/${part(name)}/seek`, { to: "earliest" }); notice(`${name} starts again with the oldest message.`); });
}

async function attempt(act) {
  try { await act(); } catch (error) { notice(error.message, true); }
}
