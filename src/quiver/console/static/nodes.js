// The nodes of the cluster.

import { counts, latencies } from "./axes.js";
import { chart } from "./charts.js";
import { onCluster } from "./cluster.js";
import { el, heading, mark } from "./dom.js";
import { count } from "./format.js";
import { past } from "./past.js";
import { spanChoice } from "./span.js";
import { table } from "./table.js";

const state = (row) => (row.alive ? (row.draining ? "draining" : "alive") : "down");

const COLUMNS = [
  { title: "Node", value: (row) => row.id, show: (row) => (row.host ? `${row.id} on ${row.host}` : row.id) },
  { title: "State", value: state, show: (row) => mark(state(row)) },
  { title: "Role", value: (row) => row.role, show: (row) => (row.isController ? `${row.role}, controller` : row.role) },
  { title: "Zone", value: (row) => row.zone, show: (row) => row.zone || "—" },
  { title: "Address", value: (row) => row.address, show: (row) => row.address || "—" },
  { title: "Version", value: (row) => row.version },
  { title: "Leaders", value: (row) => row.leads, show: (row) => count(row.leads), number: true },
  { title: "Replicas", value: (row) => row.holds, show: (row) => count(row.holds), number: true },
];

// What an operator sees while an upgrade is under way.
function mixed(nodes) {
  const versions = [...new Set(nodes.filter((one) => one.alive).map((one) => one.version))].sort();
  return versions.length > 1 ? `The nodes have different versions: ${versions.join(", ")}. Finish the upgrade.` : "";
}

export function nodesPage(content, { signal }) {
  const rows = table(COLUMNS, { key: (row) => row.id, search: false });
  const here = el("p", { class: "hint" }), upgrade = el("p", { class: "hint", role: "status" }), node = past("node", signal);
  content.append(...heading("Nodes", "Nodes of the cluster, with the number of partitions that each leads and stores."), rows.element, upgrade, here,
    el("h2", {}, "This node over time"),
    spanChoice(), el("div", { class: "charts" },
      chart("Connections", [["open", "connections"]], counts, node, signal),
      chart("Response time of the node", [["response", "answer_ms"]], latencies, node, signal)));
  onCluster((cluster, { node }) => {
    rows.update((cluster?.nodes || []).map((one) => ({ ...one, isController: one.id === cluster.controller })));
    upgrade.textContent = mixed(cluster?.nodes || []);
    here.textContent = cluster ? `This page is served by ${cluster.node}.` : `This page is served by ${node.name}. To see all nodes, the token needs the grant admin:cluster:*.`;
  }, signal);
}
