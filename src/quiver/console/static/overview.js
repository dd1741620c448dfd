// Overview: rates, depth, lag and latency of the node.

import { ages, counts, latencies } from "./axes.js";
import { chart } from "./charts.js";
import { el, heading } from "./dom.js";
import { age, count, milliseconds, rate } from "./format.js";
import { onSnapshot } from "./live.js";
import { isOwn } from "./names.js";
import { past } from "./past.js";
import { queueColumns } from "./queues.js";
import { spanChoice } from "./span.js";
import { isEmpty, startCard } from "./start.js";
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
  const totals = past("totals", signal), node = past("node", signal);
  const start = startCard(), rest = el("div");
  content.append(...heading("Overview"), start, rest);
  rest.append(tiles, spanChoice(),
    el("div", { class: "charts" },
      chart("Messages per second", [["published", "published_rate"], ["finished", "finished_rate"]], counts, totals, signal),
      chart("Depth by state", [["ready", "ready"], ["leased", "leased"], ["delayed", "delayed"], ["dead", "dead"]], counts, totals, signal),
      chart("Age of the oldest pending message", [["age", "oldest_s"]], ages, totals, signal),
      chart("Publish latency", [["p50", "publish_p50_ms"], ["p99", "publish_p99_ms"]], latencies, node, signal)),
    el("h2", {}, "Deepest queues"), busiest.element);
  const end = onSnapshot((snapshot) => {
    start.hidden = !isEmpty(snapshot);
    rest.hidden = !start.hidden;
    TILES.forEach(([, read], place) => { values[place].textContent = read(snapshot); });
    busiest.update(snapshot.subscriptions.filter(isOwn).sort((a, b) => b.pending - a.pending).slice(0, 8));
  });
  signal.addEventListener("abort", end);
}
