// The operations of the OpenAPI document, as a reader of /docs sees them.

import { button, el } from "./dom.js";
import { count } from "./format.js";

const RANGE_MAX = 1e9;
const EXAMPLES = { queue: "emails", topic: "orders", name: "emails" };

export function operation(method, path, told, schemas) {
  const inside = el("div", { class: "inside" });
  const whole = el("details", { class: "operation", id: told.operationId }, el("summary", {},
    el("span", { class: `method ${method}` }, method.toUpperCase()), el("code", {}, path), el("span", {}, told.summary.replaceAll("`", ""))), inside);
  // What is closed is made when it is opened.
  whole.addEventListener("toggle", () => { if (!inside.childElementCount) inside.append(...parts(method, path, told, schemas)); });
  return whole;
}

function parts(method, path, told, schemas) {
  const bodies = Object.entries(told.requestBody?.content ?? {});
  return [
    ...section("Parameters", told.parameters.map((one) => [one.name, typeOf(one.schema, schemas), `${one.required ? "" : "Optional. "}${one.description ?? one.schema.description ?? ""}`])),
    ...section("Body", bodies.flatMap(([, { schema }]) => fields(schema, schemas))),
    el("h3", {}, "Request"), curl(method, path, bodies),
    ...Object.entries(told.responses).filter(([status]) => status < "300").flatMap(([status, { description, content }]) => reply(status, description, content)),
    ...section("Responses", Object.entries(told.responses).map(([status, { description }]) => [status, "", description])),
  ];
}

function section(title, rows) {
  if (!rows.length) return [];
  return [el("h3", {}, title), el("div", { class: "scroll", tabindex: "0" }, el("table", {}, el("tbody", {},
    rows.map(([name, type, about]) => el("tr", {}, el("td", {}, name), type && el("td", { class: "soft" }, type), el("td", { class: "wrap" }, about))))))];
}

function reply(status, description, content) {
  const [example] = Object.values(Object.values(content ?? {})[0]?.examples ?? {});
  return example ? [el("h3", {}, `Reply ${status}: ${description}`), el("pre", { tabindex: "0" }, JSON.stringify(example.value, null, 2))] : [];
}

const resolved = (schema, schemas) => (schema.$ref ? { ...schemas[schema.$ref.split("/").pop()], ...schema, $ref: undefined } : schema);

function typeOf(schema, schemas) {
  const whole = resolved(schema, schemas);
  if (whole.anyOf) return [...new Set(whole.anyOf.map((one) => typeOf(one, schemas)))].join(" or ");
  if (whole.enum) return whole.enum.join(" | ");
  const range = whole.minimum === undefined ? "" : whole.maximum < RANGE_MAX ? ` ${count(whole.minimum)} to ${count(whole.maximum)}` : ` from ${count(whole.minimum)}`;
  return whole.type === "array" ? `list of ${typeOf(whole.items ?? {}, schemas)}` : `${whole.type ?? "anything"}${range}`;
}

// The fields of a body; those of a group in it have its name before theirs.
function fields(schema, schemas, group = "") {
  const whole = resolved(schema, schemas);
  if (whole.anyOf && !whole.properties) return whole.anyOf.flatMap((one) => fields(one, schemas, group));
  return Object.entries(whole.properties ?? {}).flatMap(([name, given]) => {
    const inner = fields(given, schemas, `${group}${name}.`);
    return inner.length ? inner : [[`${group}${name}`, typeOf(given, schemas), `${resolved(given, schemas).description ?? ""}${whole.required?.includes(name) ? " Required." : ""}`]];
  });
}

function curl(method, path, bodies) {
  const address = `${location.origin}${path.replace(/\{(\w+)\}/g, (_, name) => EXAMPLES[name] ?? name.toUpperCase())}`;
  const [example] = Object.values(bodies[0]?.[1].examples ?? {});
  const way = method === "get" || (method === "post" && example) ? "" : ` -X ${method.toUpperCase()}`;
  const text = `curl${way} '${address}'${example ? ` \\\n  -d '${JSON.stringify(example.value).replaceAll("'", "'\\''")}'` : ""}`;
  const copy = button("Copy", async () => {
    await navigator.clipboard?.writeText(text).catch(() => {});
    copy.textContent = "Copied";
  }, "quiet");
  return el("div", { class: "curl" }, el("pre", { tabindex: "0" }, text), copy);
}
