// Names of topics and queues: which of them are the user's own, and which only come with others.

import { part } from "./api.js";

export const isInternal = (name) => name.startsWith("__");

// Internal topics, and topics and queues that hold the dead letters of others, are not listed at first.
export const isAside = (row) => isInternal(row.name) || row.holds_dead_letters;
export const isOwn = (row) => !isAside(row);

const OF_TOPICS = new Set(["dedup_forgotten", "transaction_age", "under_replicated", "mirror_lag",
  "mirror_gaps", "mirror_broken"]);
const OF_DEAD_LETTERS = new Set(["dead_letters", "dead_letter_arrivals"]);

// Where the subject of an alert is shown.
export function placeOf({ watch, subject }) {
  if (!subject || watch === "node_down") return "#/nodes";
  return `#/${OF_TOPICS.has(watch) ? "topics" : OF_DEAD_LETTERS.has(watch) ? "dead" : "queues"}/${part(subject)}`;
}
