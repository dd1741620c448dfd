// Tokens: who may do what. A new one is shown once.

import { call, get, part } from "./api.js";
import { ask, button, el, fill, head, mark, nothing, notice, problem } from "./dom.js";
import { moment } from "./format.js";
import { sheet } from "./sheet.js";
import { table } from "./table.js";

const state = (row) => (row.revoked ? "revoked" : row.expires && new Date(row.expires) < Date.now() ? "expired" : "active");

const COLUMNS = (again) => [
  { title: "Name", value: (row) => row.name, show: (row) => el("div", {}, row.name, el("div", { class: "mono soft" }, row.id)) },
  { title: "Grants", value: (row) => row.grants.join(", "), wrap: true },
  { title: "State", value: state, show: (row) => el("span", {}, mark(state(row)), row.certificate ? " certificate" : "") },
  { title: "Created", value: (row) => row.created, show: (row) => moment(row.created).slice(0, 16) },
  { title: "Expires", value: (row) => row.expires, show: (row) => (row.expires ? moment(row.expires).slice(0, 16) : "never") },
  { title: "", action: true, value: state, show: (row) => (state(row) === "active" ? el("button", { type: "button", class: "quiet", onclick: () => revoke(row, again) }, "Revoke…") : el("span")) },
];

export async function tokensPage(content, { signal }) {
  const rows = table(COLUMNS(() => look()), { key: (row) => row.id, empty: "No tokens yet." }), told = el("div");
  const create = button("New token", async () => { if (await createToken()) await look(); });
  const look = async () => {
    const found = await get("/tokens").catch((error) => error);
    if (signal.aborted) return;
    const failed = found instanceof Error;
    create.hidden = rows.element.hidden = failed;
    if (failed) fill(told, found.status === 422 ? nothing("This node lets everybody in. To use tokens, turn on security.authentication first.") : problem(found));
    else { fill(told); rows.update(found.tokens); }
  };
  content.append(head("Tokens", "Each token belongs to a principal and has grants. What no grant covers is refused.", create), told, rows.element);
  await look();
}

const labelled = (label, input, about) => el("div", { class: "field" }, el("label", { for: input.id }, label), input, el("div", { class: "hint" }, about), el("div", { class: "wrong", role: "alert", "data-field": input.name }));

async function createToken() {
  const name = el("input", { id: "token-name", name: "name", required: true, autocomplete: "off", placeholder: "shop" });
  const grants = el("textarea", { id: "token-grants", name: "grants", required: true, rows: "3", spellcheck: "false", placeholder: "publish:orders\nconsume:queue:emails" });
  const expires = el("input", { id: "token-expires", name: "expires", autocomplete: "off", placeholder: "never" });
  const certificate = el("input", { type: "checkbox" });
  const told = el("div");
  const body = [told, labelled("Name", name, "The principal. Several tokens may have the same one."),
    labelled("Grants", grants, "One in a line: publish, consume or admin, then optionally topic:, queue:, subscription: or cluster:, then a name in which * matches anything. admin:* may do everything."),
    labelled("Expires after", expires, "Such as 90d. Empty: never."),
    el("label", { class: "check" }, certificate, "For client certificates of this name: create no token")];
  const save = () => call("POST", "/tokens", { name: name.value.trim(), grants: grants.value.split(/[\s,]+/).filter(Boolean), expires: expires.value.trim() || null, certificate: certificate.checked });
  const fail = (error) => {
    fill(told);
    for (const one of body.flatMap((each) => [...each.querySelectorAll(".wrong")])) one.textContent = "";
    const field = { expires_s: "expires" }[error.field] ?? error.field?.split(/[.[]/)[0];
    const at = field && body.map((each) => each.querySelector(`[data-field="${CSS.escape(field)}"]`)).find(Boolean);
    if (at) { at.textContent = error.message; body.map((each) => each.querySelector(`[name="${CSS.escape(field)}"]`)).find(Boolean).focus(); } else fill(told, problem(error));
  };
  const made = await sheet("New token", body, "Create token", save, { fail });
  if (made?.token) await showOnce(made);
  return made;
}

// The node has only a hash of it: whoever closes this without copying needs a new one.
function showOnce({ name, token }) {
  const secret = el("textarea", { readonly: true, rows: "3", spellcheck: "false", "aria-label": "Token", onfocus: (event) => event.target.select() }, token);
  const copied = el("span", { role: "status" });
  const copy = async () => {
    secret.select();
    try { await navigator.clipboard.writeText(token); copied.textContent = "Copied."; } catch { copied.textContent = document.execCommand("copy") ? "Copied." : "Press Ctrl+C to copy."; }
  };
  const body = [el("p", {}, `Copy the token of ${name} now. It is not shown again.`), el("div", { class: "secret" }, secret, el("button", { type: "button", class: "quiet", onclick: copy }, "Copy")), copied];
  return sheet("The new token", body, "Done", async () => true, { mayLeave: false });
}

async function revoke({ id, name }, again) {
  if (!await ask(`Revoke the token of ${name}?`, `The token ${id} stops working at once, on open connections too. This cannot be undone.`, "Revoke")) return;
  try {
    await call("DELETE", `/tokens/${part(id)}`);
    notice("The token is revoked.");
  } catch (error) { notice(error.message, true); }
  await again();
}
