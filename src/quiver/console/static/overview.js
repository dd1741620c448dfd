// Overview: rates, depth, lag and latency of the node.

import { ages, counts, latencies } from "./axes.js";
import { chart } from "./charts.js";
import { el, heading } from "./dom.js";
import { age, count, milliseconds, rate } from "./format.js";
import { onSnapshot } from "./live.js";
import { isOwn } from "./names.js";
import { queueColumns } from "./queues.js";
import { table } from "./table.js";

const TILES = [
  ["Published", (one) => rate(one.totals.published_rate)],
  ["Finished", (one) => rate(one.totals.finished_rate)],
  ["Pending", (one) => count(one.totals.pending)],
  ["Oldest pending", (one) => age(one.totals.oldest_s)],
  ["Publish p99", (one) => milliseconds(one.node.publish_p99_ms)],
  ["Dead letters", (one) => count(one.totals.dead)],
];

export function overviewPage(content, { signal }) {
  const values = TILES.map(() => el("dd", {}, "—"));
  const tiles = el("dl", { class: "tiles" }, TILES.map(([name], place) => el("div", { class: "tile" }, el("dt", {}, name), values[place])));
  const busiest = table(queueColumns, { key: (row) => row.name, sort: 2, descending: true, search: false, empty: "No queues or subscriptions yet." });
  content.append(...heading("Overview"), tiles,
    el("div", { class: "charts" },
      chart("Messages per second", [["published", (one) => one.totals.published_rate], ["finished", (one) => one.totals.finished_rate]], counts, signal),
      chart("Depth by state", [["ready", (one) => one.totals.ready], ["leased", (one) => one.totals.leased], ["delayed", (one) => one.totals.delayed], ["dead", (one) => one.totals.dead]], counts, signal),
      chart("Age of the oldest pending message", [["age", (one) => one.totals.oldest_s]], ages, signal),
      chart("Publish latency", [["p50", (one) => one.node.publish_p50_ms], ["p99", (one) => one.node.publish_p99_ms]], latencies, signal)),
    el("h2", {}, "Deepest queues"), busiest.element);
  const end = onSnapshot((snapshot) => {
    TILES.forEach(([, read], place) => { values[place].textContent = read(snapshot); });
    busiest.update(snapshot.subscriptions.filter(isOwn).sort((a, b) => b.pending - a.pending).slice(0, 8));
  });
  signal.addEventListener("abort", end);
}
