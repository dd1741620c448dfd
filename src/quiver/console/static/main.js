// The console's frame: sign-in, navigation, connection state and theme.

import { alertsPage, badge, watchAlerts } from "./alerts.js";
import { call, token } from "./api.js";
import { deadLettersPage } from "./dead_letters.js";
import { el, field, fill, heading, problem } from "./dom.js";
import * as live from "./live.js";
import { messagesPage } from "./messages.js";
import { mirrorPage, mirrorsPage } from "./mirrors.js";
import { nodesPage } from "./nodes.js";
import { overviewPage } from "./overview.js";
import { publishPage } from "./publish.js";
import { queuePage, queuesPage } from "./queues.js";
import { tokensPage } from "./tokens.js";
import { themeButton } from "./theme_button.js";
import { topicPage, topicsPage } from "./topics.js";

const PAGES = [
  ["", "Overview", overviewPage],
  ["topics", "Topics", topicsPage, topicPage],
  ["queues", "Queues", queuesPage, queuePage],
  ["messages", "Messages", messagesPage, messagesPage],
  ["dead", "Dead letters", deadLettersPage, deadLettersPage],
  ["publish", "Publish", publishPage, publishPage],
  ["alerts", "Alerts", alertsPage],
  ["nodes", "Nodes", nodesPage],
  ["mirrors", "Mirrors", mirrorsPage, mirrorPage],
  ["tokens", "Tokens", tokensPage],
];
const UNKNOWN = [null, "Page not found", unknownPage];
const content = document.getElementById("content");
const state = document.getElementById("state");
let page = new AbortController();

// ---------------------------------------------------------------- pages

function place() {
  const [path, query = ""] = location.hash.replace(/^#\/?/, "").split("?");
  const [name, ...rest] = path.split("/");
  return { name, subject: decoded(rest.join("/")), query: new URLSearchParams(query) };
}

function decoded(text) {
  try { return decodeURIComponent(text); } catch { return text; }
}

function unknownPage(place) {
  place.append(...heading("Page not found", "The console has no page at this address:"), el("p", { class: "mono" }, location.hash), el("p", {}, el("a", { href: "#/" }, "Go to the overview")));
}

// What the node refuses instead of a page: nothing of that name, no permission, no answer.
function failed(path, title, subject, error) {
  if (content.childElementCount) return content.append(problem(error));
  const name = error.status === 404 ? "Not found" : error.status === 403 ? "Not allowed" : title;
  return content.append(...heading(subject || name), problem(error), el("p", {}, el("a", { href: `#/${path}` }, `Go to ${title.toLowerCase()}`)));
}

function show() {
  page.abort();
  page = new AbortController();
  const { name, subject, query } = place();
  const [path, title, all, one] = PAGES.find(([known, , , each]) => known === name && (!subject || each)) || UNKNOWN;
  for (const link of document.querySelectorAll("#nav a")) {
    if (link.dataset.page === path) {
      link.setAttribute("aria-current", "page");
      link.scrollIntoView({ inline: "center", block: "nearest" });
    } else link.removeAttribute("aria-current");
  }
  document.title = `${subject && one ? `${subject} · ` : ""}${title} · Quiver`;
  const make = subject && one ? one : all;
  fill(content);
  const { signal } = page;
  Promise.resolve(make(content, { subject, query, signal })).catch((error) => signal.aborted || failed(path, title, subject, error));
}

function navigation() {
  fill(document.getElementById("nav"), PAGES.map(([path, title]) =>
    el("a", { href: `#/${path}`, "data-page": path }, title, path === "alerts" && badge)));
}

// ---------------------------------------------------------------- who is there

function onState(word, snapshot) {
  state.className = `state ${word}`;
  state.textContent = word === "on" ? `${snapshot.node.name} · live` : "disconnected, reconnecting …";
}

async function enter() {
  try {
    await call("GET", "/cluster");
  } catch (error) {
    if (error.status === 401) return;
    fill(content, problem(error), el("p", { class: "hint" }, "The page retries every two seconds."));
    setTimeout(enter, 2000);
    return;
  }
  document.getElementById("leave").hidden = !token.get();
  navigation();
  live.start(onState);
  watchAlerts();
  show();
}

function signIn() {
  const wasGiven = Boolean(token.get());
  token.clear();
  live.forget();
  page.abort();
  fill(document.getElementById("nav"));
  document.getElementById("leave").hidden = true;
  state.className = "state";
  state.textContent = "signed out";
  const box = el("input", { type: "password", autocomplete: "off", required: true, spellcheck: "false", id: "token" });
  const submit = (event) => {
    event.preventDefault();
    token.set(box.value.trim());
    enter();
  };
  fill(content, el("div", { class: "signin" }, heading("Sign in", "This node requires a token. Paste it here; it is kept until you close this tab."),
    wasGiven && problem(new Error("The token is wrong, expired or revoked.")),
    el("form", { onsubmit: submit }, field("Token", box), el("button", { type: "submit" }, "Sign in"))));
  box.focus();
}

document.getElementById("leave").addEventListener("click", () => { token.clear(); signIn(); });
document.getElementById("skip").addEventListener("click", (event) => { event.preventDefault(); content.focus(); });
addEventListener("hashchange", show);
addEventListener("quiver:unknown", signIn);
themeButton(document.getElementById("theme"));
enter();
