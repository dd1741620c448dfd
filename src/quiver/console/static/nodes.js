// The nodes, as the one that answers knows them.

import { get } from "./api.js";
import { chart } from "./charts.js";
import { el, heading } from "./dom.js";
import { age, count, milliseconds, short } from "./format.js";
import { onFigures } from "./live.js";
import { table } from "./table.js";

const LOOK_MS = 2000;
const COLUMNS = [
  { title: "Node", value: (row) => row.node },
  { title: "Software", value: (row) => row.software },
  { title: "Up for", value: (row) => row.uptime_s, show: (row) => age(row.uptime_s), number: true },
  { title: "Topics", value: (row) => row.topics, show: (row) => count(row.topics), number: true },
  { title: "Partitions", value: (row) => row.partitions, show: (row) => count(row.partitions), number: true },
  { title: "Connections", value: (row) => row.connections, show: (row) => count(row.connections), number: true },
];

export async function nodesPage(content, { signal }) {
  const rows = table(COLUMNS, { key: (row) => row.node, search: false });
  const here = el("p", { class: "hint" });
  content.append(...heading("Nodes"), rows.element, here, el("h2", {}, "This node over time"),
    el("div", { class: "charts" },
      chart("Connections", [["open", (one) => one.node.connections]], short, signal),
      chart("Time the node takes to answer", [["answer", (one) => one.node.answer_ms]], milliseconds, signal)));
  let looked = 0;
  signal.addEventListener("abort", onFigures(async (figures) => {
    if (figures.time_ms - looked < LOOK_MS) return;
    looked = figures.time_ms;
    const cluster = await get("/cluster").catch(() => null);
    if (!cluster || signal.aborted) return;
    rows.update(cluster.nodes);
    here.textContent = `${cluster.node} serves this page.`;
  }));
}
