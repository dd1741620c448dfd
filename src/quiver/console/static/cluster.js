// The state of the cluster. It may be large, so it is polled less often than the metrics.

import { get } from "./api.js";
import { onSnapshot } from "./live.js";

const LOOK_MS = 3000;

// Calls `show` with the cluster now and then until `signal`; with null for who may not see it.
export function onCluster(show, signal) {
  let looked = 0;
  signal.addEventListener("abort", onSnapshot(async (snapshot) => {
    if (snapshot.time_ms - looked < LOOK_MS) return;
    looked = snapshot.time_ms;
    const cluster = await get("/cluster").catch((error) => (error.status === 403 ? null : undefined));
    if (cluster !== undefined && !signal.aborted) show(cluster, snapshot);
  }));
}
