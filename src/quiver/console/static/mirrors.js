// Mirrors: topics that this cluster copies from another, and how far the copies are.

import { call, get, part } from "./api.js";
import { ask, button, el, facts, fill, head, heading, mark, notice, problem } from "./dom.js";
import { age, count, size } from "./format.js";
import { onSnapshot } from "./live.js";
import { table } from "./table.js";

const LOOK_MS = 2000;

const COLUMNS = [
  { title: "Mirror", value: (row) => row.name, show: (row) => el("a", { href: `#/mirrors/${part(row.name)}` }, row.name) },
  { title: "State", value: (row) => row.state, show: (row) => mark(row.state) },
  { title: "Source", value: (row) => row.settings.source },
  { title: "Topics", value: (row) => row.settings.topics.join(" ") },
  { title: "Lag", value: (row) => row.lag_messages, show: (row) => count(row.lag_messages), number: true },
  { title: "Lag in bytes", value: (row) => row.lag_bytes, show: (row) => size(row.lag_bytes), number: true },
  { title: "Behind for", value: (row) => row.lag_s, show: (row) => age(row.lag_s), number: true },
  { title: "Error", value: (row) => row.error, wrap: true },
];

const state = (row) => (row.is_broken ? "broken" : row.error ? "waiting" : "copying");
const gaps = (row) => row.gaps.map((one) => `${count(one.start_offset)} to ${count(one.next_offset - 1)}`).join(", ");

const PARTITIONS = [
  { title: "Topic", value: (row) => row.topic, show: (row) => el("a", { href: `#/topics/${part(row.topic)}` }, row.topic) },
  { title: "Partition", value: (row) => row.index, number: true },
  { title: "State", value: state, show: (row) => mark(state(row)) },
  { title: "Next offset", value: (row) => row.next_offset, show: (row) => count(row.next_offset), number: true },
  { title: "Lag", value: (row) => row.lag_messages, show: (row) => count(row.lag_messages), number: true },
  { title: "Lag in bytes", value: (row) => row.lag_bytes, show: (row) => size(row.lag_bytes), number: true },
  { title: "Behind for", value: (row) => row.lag_s, show: (row) => age(row.lag_s), number: true },
  { title: "Age of states", value: (row) => row.state_lag_s, show: (row) => age(row.state_lag_s), number: true },
  { title: "Missing offsets", value: gaps, wrap: true },
  { title: "Error", value: (row) => row.error, wrap: true },
];

// Calls `look` at once and then every two seconds, until `signal`.
async function again(look, signal) {
  let looked = Date.now();
  await look();
  signal.addEventListener("abort", onSnapshot((snapshot) => {
    if (snapshot.time_ms - looked < LOOK_MS) return;
    looked = snapshot.time_ms;
    look().catch(() => {});
  }));
}

export async function mirrorsPage(content, { signal }) {
  const rows = table(COLUMNS, { key: (row) => row.name, empty: "No mirrors yet. Add one with: quiver mirror add NAME --from URL --topics PATTERN" });
  content.append(...heading("Mirrors", "Topics that this cluster copies from another one."));
  await again(async () => {
    const { mirrors } = await get("/mirrors");
    if (!signal.aborted) rows.update(mirrors);
  }, signal);
  if (!signal.aborted) content.append(rows.element);
}

export async function mirrorPage(content, { subject, signal }) {
  const path = `/mirrors/${part(subject)}`, told = el("div"), about = el("div", { class: "card" });
  const rows = table(PARTITIONS, { key: (row) => `${row.topic}/${row.index}`, search: false, empty: "Nothing is copied yet." });
  let before, copied = null;
  const look = async () => {
    const now = Date.now(), info = await get(path);
    if (signal.aborted) return;
    if (before && now > before.now) copied = Math.max(0, info.copied_bytes - before.bytes) * 1000 / (now - before.now);
    before = { now, bytes: info.copied_bytes };
    const errors = [info.error, ...info.topics.filter((one) => one.error).map((one) => `${one.source} is not copied: ${one.error}`)].filter(Boolean);
    fill(told, errors.map((text) => problem(new Error(text))));
    fill(about, facts([["State", mark(info.state)], ["Source", info.settings.source], ["Topics", info.settings.topics.join(" ")],
      ["Copies are named", info.settings.rename], ["Subscriptions", info.settings.with_subscriptions ? "are copied" : "are not copied"],
      ["Copied", copied === null ? size(info.copied_bytes) : `${size(info.copied_bytes)}, ${size(copied)}/s`]]));
    toggle.textContent = info.settings.paused ? "Resume" : "Pause";
    rows.update(info.topics.flatMap((topic) => topic.partitions.map((one) => ({ ...one, topic: topic.name }))));
    names = info.topics.map((one) => one.name).filter(Boolean);
  };
  let names = [];
  const act = async (work, said) => {
    try { notice(await work() ?? said); } catch (error) { notice(error.message, true); }
    await look();
  };
  const toggle = button("Pause", () => act(() => call("PATCH", path, { paused: toggle.textContent === "Pause" }).then(() => null), "The mirror is changed."), "quiet");
  const promote = async () => {
    if (!names.length || !await ask(`Promote the copies of ${subject}?`, `${names.join(", ")} will take publishes here, and their source is asked to take none any more.`, "Promote")) return;
    await act(async () => {
      const { topics } = await call("POST", "/promote", { topics: names });
      const lacking = topics.filter((one) => !one.complete).map((one) => one.name);
      return lacking.length ? `Promoted without everything of the source: ${lacking.join(", ")}` : "The copies are promoted.";
    });
  };
  await again(look, signal);
  if (!signal.aborted) content.append(head(subject, "Mirror", toggle, button("Promote…", promote, "quiet bad")), told, about, el("h2", {}, "Partitions"), rows.element);
}
