// The nodes: the one that answers, and what it says of itself.

import { chart } from "./charts.js";
import { el, heading } from "./dom.js";
import { age, count, short } from "./format.js";
import { onFigures } from "./live.js";
import { table } from "./table.js";

const COLUMNS = [
  { title: "Node", value: (row) => row.name },
  { title: "Software", value: (row) => row.software },
  { title: "Up for", value: (row) => row.uptime_s, show: (row) => age(row.uptime_s), number: true },
  { title: "Topics", value: (row) => row.topics, show: (row) => count(row.topics), number: true },
  { title: "Partitions", value: (row) => row.partitions, show: (row) => count(row.partitions), number: true },
  { title: "Connections", value: (row) => row.connections, show: (row) => count(row.connections), number: true },
  { title: "Answers in", value: (row) => row.answer_ms, show: (row) => `${row.answer_ms.toFixed(1)} ms`, number: true },
];

export function nodesPage(content, { signal }) {
  const rows = table(COLUMNS, { key: (row) => row.name, search: false });
  content.append(...heading("Nodes", "The node that serves this page."), rows.element, el("h2", {}, "Over time"),
    el("div", { class: "charts" }, chart("Connections", [["open", (one) => one.node.connections]], short, signal)));
  signal.addEventListener("abort", onFigures((figures) => rows.update([figures.node])));
}
