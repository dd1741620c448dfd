// A snapshot of the metrics every second, over a WebSocket that is opened again whenever it ends.

import { token } from "./api.js";

const KEPT = 120;
const PAUSE_MAX_MS = 10_000;
const PROTOCOL = "quiver.console.v1";

export const recent = [];
const listeners = new Set();
let socket = null;
let pause = 500;
let timer = null;

export const latest = () => recent[recent.length - 1] || null;

export function onSnapshot(listener) {
  listeners.add(listener);
  if (latest()) listener(latest());
  return () => listeners.delete(listener);
}

// The newest snapshot, as soon as there is one.
export function current() {
  if (latest()) return Promise.resolve(latest());
  return new Promise((resolve) => {
    const end = onSnapshot((snapshot) => { end(); resolve(snapshot); });
  });
}

export function start(onState) {
  stop();
  const scheme = location.protocol === "https:" ? "wss" : "ws";
  const protocols = token.get() ? [PROTOCOL, `quiver.bearer.${token.get()}`] : [PROTOCOL];
  const opened = new WebSocket(`${scheme}://${location.host}/console/live`, protocols);
  socket = opened;
  opened.onmessage = (event) => {
    pause = 500;
    const snapshot = JSON.parse(event.data);
    recent.push(snapshot);
    if (recent.length > KEPT) recent.shift();
    onState("on", snapshot);
    for (const listener of [...listeners]) listener(snapshot);
  };
  opened.onclose = () => {
    if (socket !== opened) return;
    onState("off");
    timer = setTimeout(() => start(onState), pause);
    pause = Math.min(pause * 2, PAUSE_MAX_MS);
  };
}

export function stop() {
  clearTimeout(timer);
  const ended = socket;
  socket = null;
  if (ended) ended.close();
}

export function forget() {
  stop();
  recent.length = 0;
}
