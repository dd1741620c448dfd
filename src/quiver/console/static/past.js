// What charts draw: the last hour as the node kept it, then the live snapshots.

import { get } from "./api.js";
import { onSnapshot, recent } from "./live.js";

const AGAIN_MS = 60_000;
const QUERIES = { topics: "topic", subscriptions: "subscription" };

// Of the "node", of the "totals", or of one of the "topics" or "subscriptions", until `signal`.
export function past(kind, signal, name) {
  const listeners = new Set();
  let times = [], columns = {};
  const row = (snapshot) => (name === undefined ? snapshot[kind] : snapshot[kind].find((one) => one.name === name));
  const tell = () => { for (const listener of listeners) listener(); };

  // Where the node keeps no history, as a forwarder, charts begin with what is live.
  const load = async () => {
    const told = await get("/console/history", name === undefined ? {} : { [QUERIES[kind]]: name }).catch(() => null);
    if (!told || signal.aborted) return;
    [times, columns] = [told.times_ms, told[kind]];
    tell();
  };
  load();
  const timer = setInterval(load, AGAIN_MS);
  const end = onSnapshot(tell);
  signal.addEventListener("abort", () => { clearInterval(timer); end(); listeners.clear(); });

  return {
    points(field, from) {
      const live = recent.length ? recent[0].time_ms : Infinity;
      const stored = times.map((x, place) => ({ x, y: columns[field]?.[place] ?? null }));
      return [...stored.filter(({ x }) => x >= from && x < live),
        ...recent.filter((one) => one.time_ms >= from).map((one) => ({ x: one.time_ms, y: row(one)?.[field] ?? null }))];
    },
    first: () => Math.min(times[0] ?? Infinity, recent[0]?.time_ms ?? Infinity),
    follow(listener) { listeners.add(listener); listener(); },
  };
}
