// Topics and their partitions.

import { get, part } from "./api.js";
import { counts } from "./axes.js";
import { chart } from "./charts.js";
import { onCluster } from "./cluster.js";
import { button, el, fill, head, notice } from "./dom.js";
import { count, moment, rate, size } from "./format.js";
import { onSnapshot } from "./live.js";
import { isAside, isInternal } from "./names.js";
import { past } from "./past.js";
import { settingsCard } from "./settings.js";
import { spanChoice } from "./span.js";
import { table } from "./table.js";
import { alterTopic, createTopic, deleteTopic } from "./topic_admin.js";

const COLUMNS = [
  { title: "Topic", value: (row) => row.name, show: (row) => el("a", { href: `#/topics/${part(row.name)}` }, row.name) },
  { title: "Partitions", value: (row) => row.partitions, number: true },
  { title: "Messages", value: (row) => row.messages, show: (row) => count(row.messages), number: true },
  { title: "Size", value: (row) => row.bytes, show: (row) => size(row.bytes), number: true },
  { title: "Published", value: (row) => row.rate, show: (row) => rate(row.rate), number: true },
  { title: "Written", value: (row) => row.byte_rate, show: (row) => `${size(row.byte_rate)}/s`, number: true },
];

export function topicsPage(content, { signal }) {
  const rows = table(COLUMNS, { key: (row) => row.name, empty: "No topics yet.", aside: { label: "Show dead-letter and internal topics", has: isAside } });
  const more = el("p", { class: "hint" });
  content.append(head("Topics", "Stored messages and publish rates.", button("New topic", createTopic)), rows.element, more);
  signal.addEventListener("abort", onSnapshot((snapshot) => {
    rows.update(snapshot.topics);
    more.textContent = snapshot.more_topics ? `${count(snapshot.more_topics)} more are not listed. Open any of them at #/topics/NAME.` : "";
  }));
}

const PARTITIONS = [
  { title: "Partition", value: (row) => row.index },
  { title: "Leader", value: (row) => row.placed?.leader ?? row.leader, show: (row) => (row.placed ? row.placed.leader || "none" : row.leader || "this node") },
  { title: "Replicas", value: (row) => row.placed?.replicas.length, show: (row) => (row.placed ? row.placed.replicas.join(" ") : "—") },
  { title: "In sync", value: (row) => row.placed?.in_sync.length, show: (row) => (row.placed ? `${row.placed.in_sync.length} of ${row.placed.replicas.length}` : "—"), number: true },
  { title: "Eligible", value: (row) => row.placed?.eligible?.length, show: (row) => row.placed?.eligible?.join(" ") || "—" },
  { title: "First offset", value: (row) => row.start_offset, show: (row) => count(row.start_offset), number: true },
  { title: "Next offset", value: (row) => row.next_offset, show: (row) => count(row.next_offset), number: true },
  { title: "Messages", value: (row) => row.next_offset - row.start_offset, show: (row) => count(row.next_offset - row.start_offset), number: true },
  { title: "Size", value: (row) => row.bytes, show: (row) => size(row.bytes), number: true },
];

export async function topicPage(content, { subject, signal }) {
  const path = `/topics/${part(subject)}`;
  const info = await get(path);
  if (signal.aborted) return;
  const partitions = table(PARTITIONS, { key: (row) => row.index, search: false });
  let shown = info.partitions, placed = new Map();
  const update = () => partitions.update(shown.map((one) => ({ ...one, placed: placed.get(one.index) })));
  update();
  onCluster((cluster) => {
    placed = new Map((cluster?.partitions || []).filter((one) => one.topic === subject).map((one) => [one.index, one]));
    update();
  }, signal);
  const history = past("topics", signal, subject);
  const readers = el("div", { class: "links" }, "—");
  const settings = el("div");
  const show = async (values) => fill(settings, await settingsCard("TopicFields", values, { leave: ["partitions"] }));
  const alter = async () => { const changed = await alterTopic({ ...info, settings: (await get(path)).settings }); if (changed) { notice("The settings are saved."); await show(changed.settings); } };
  const remove = () => deleteTopic(subject);
  content.append(...[head(subject, `Topic, created ${moment(info.created).slice(0, 19)}`, !isInternal(subject) && [button("Edit settings…", alter, "quiet"), button("Delete…", remove, "quiet bad")]),
    info.origin && el("p", { class: "hint" }, `A copy of ${info.origin.topic}, from the mirror `, el("a", { href: `#/mirrors/${part(info.origin.mirror)}` }, info.origin.mirror), ". It takes no publishes until it is promoted."),
    info.moved_to && el("p", { class: "hint" }, `This topic was moved to ${info.moved_to}. It takes no publishes.`),
    el("div", { class: "links" },
      el("a", { href: `#/messages/${part(subject)}` }, "Browse messages"),
      !isInternal(subject) && el("a", { href: `#/publish/${part(subject)}` }, "Publish a test message")),
    spanChoice(), el("div", { class: "charts" },
      chart("Messages per second", [["published", "rate"]], counts, history, signal),
      chart("Stored messages", [["messages", "messages"]], counts, history, signal)),
    el("h2", {}, "Partitions"), partitions.element,
    el("h2", {}, "Subscriptions"), el("div", { class: "card" }, readers),
    el("h2", {}, "Settings"), settings].filter(Boolean));
  await show(info.settings);
  if (signal.aborted) return;
  let looked = 0;
  signal.addEventListener("abort", onSnapshot(async (snapshot) => {
    const found = snapshot.subscriptions.filter((each) => each.topics.includes(subject));
    const names = found.map((each) => each.name).join();
    if (readers.dataset.names !== names) {
      readers.dataset.names = names;
      fill(readers, found.length ? found.flatMap((each) => [el("a", { href: `#/queues/${part(each.name)}` }, each.name)]) : document.createTextNode("none"));
    }
    if (snapshot.time_ms - looked < 2000) return;
    looked = snapshot.time_ms;
    const now = await get(path).catch(() => null);
    if (!now || signal.aborted) return;
    shown = now.partitions;
    update();
  }));
}
