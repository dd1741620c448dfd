// Mirrors: topics that this cluster copies from another, and how far the copies are.

import { get, part } from "./api.js";
import { button, el, facts, fill, head, mark, notice, problem } from "./dom.js";
import { age, count, size } from "./format.js";
import { onSnapshot } from "./live.js";
import { addMirror, alterMirror, pauseMirror, promoteCopies, removeMirror } from "./mirror_admin.js";
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

const state = (row) => (row.is_broken ? "broken" : row.error ? "waiting" : row.isPaused ? "paused" : "copying");
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
  const rows = table(COLUMNS, { key: (row) => row.name, empty: "No mirrors yet." });
  content.append(head("Mirrors", "Topics that this cluster copies from another one.", button("New mirror", addMirror)));
  await again(async () => {
    const { mirrors } = await get("/mirrors");
    if (!signal.aborted) rows.update(mirrors);
  }, signal);
  if (!signal.aborted) content.append(rows.element);
}

export async function mirrorPage(content, { subject, signal }) {
  const path = `/mirrors/${part(subject)}`, told = el("div"), about = el("div", { class: "card" });
  const rows = table(PARTITIONS, { key: (row) => `${row.topic}/${row.index}`, search: false, empty: "Nothing is copied yet." });
  let before, copied = null, shown;
  const copies = () => shown.topics.map((one) => one.name).filter(Boolean);
  const look = async () => {
    const now = Date.now(), info = await get(path);
    if (signal.aborted) return;
    if (before && now > before.now) copied = Math.max(0, info.copied_bytes - before.bytes) * 1000 / (now - before.now);
    before = { now, bytes: info.copied_bytes };
    const errors = [info.error, ...info.topics.filter((one) => one.error).map((one) => `${one.source} is not copied: ${one.error}`)].filter(Boolean);
    fill(told, errors.map((text) => problem(new Error(text))));
    fill(about, facts([["State", mark(info.state)], ["Source", info.settings.source], ["Topics", info.settings.topics.join(" ")],
      ["Copies are named", info.settings.rename], ["Subscriptions", info.settings.with_subscriptions ? "are copied" : "are not copied"],
      ["Token", info.has_token ? "given" : "none"], ["Rate", info.settings.rate === null ? "no limit" : `${size(info.settings.rate)}/s`],
      ["Copied", copied === null ? size(info.copied_bytes) : `${size(info.copied_bytes)}, ${size(copied)}/s`]]));
    shown = info;
    toggle.textContent = info.settings.paused ? "Resume" : "Pause";
    promote.disabled = !copies().length;
    rows.update(info.topics.flatMap((topic) => topic.partitions.map((one) => ({ ...one, topic: topic.name, isPaused: info.state === "paused" }))));
  };
  const act = (work) => async () => {
    try { await work(); } catch (error) { notice(error.message, true); }
    await look().catch(() => {});  // it may be removed
  };
  const toggle = button("Pause", act(() => pauseMirror(subject, !shown.settings.paused)), "quiet");
  const promote = button("Promote…", act(() => promoteCopies(subject, copies())), "quiet bad");
  await again(look, signal);
  if (signal.aborted) return;
  content.append(head(subject, "Mirror", toggle, button("Edit settings…", act(() => alterMirror(shown)), "quiet"), promote,
    button("Remove…", act(() => removeMirror(subject, copies())), "quiet bad")), told, about, el("h2", {}, "Partitions"), rows.element);
}
