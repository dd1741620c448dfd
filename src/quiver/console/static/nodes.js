// The nodes, as the one that answers knows them.

import { chart } from "./charts.js";
import { onCluster } from "./cluster.js";
import { el, heading, mark } from "./dom.js";
import { count, milliseconds, short } from "./format.js";
import { table } from "./table.js";

const state = (row) => (row.alive ? (row.draining ? "draining" : "alive") : "down");

const COLUMNS = [
  { title: "Node", value: (row) => row.id },
  { title: "State", value: state, show: (row) => mark(state(row)) },
  { title: "Role", value: (row) => row.role, show: (row) => (row.isController ? `${row.role}, controller` : row.role) },
  { title: "Zone", value: (row) => row.zone, show: (row) => row.zone || "—" },
  { title: "Address", value: (row) => row.address, show: (row) => row.address || "—" },
  { title: "Version", value: (row) => row.version },
  { title: "Leads", value: (row) => row.leads, show: (row) => count(row.leads), number: true },
  { title: "Holds", value: (row) => row.holds, show: (row) => count(row.holds), number: true },
];

export function nodesPage(content, { signal }) {
  const rows = table(COLUMNS, { key: (row) => row.id, search: false });
  const here = el("p", { class: "hint" });
  content.append(...heading("Nodes", "Which are there, and how many partitions each leads and holds."), rows.element, here,
    el("h2", {}, "The node that serves this page, over time"),
    el("div", { class: "charts" },
      chart("Connections", [["open", (one) => one.node.connections]], short, signal),
      chart("Time the node takes to answer", [["answer", (one) => one.node.answer_ms]], milliseconds, signal)));
  onCluster((cluster, { node }) => {
    rows.update((cluster?.nodes || []).map((one) => ({ ...one, isController: one.id === cluster.controller })));
    here.textContent = cluster ? `${cluster.node} serves this page.` : `${node.name} serves this page. To see all nodes, the token needs the grant admin:cluster:*.`;
  }, signal);
}
