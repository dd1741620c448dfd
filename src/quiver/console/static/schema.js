// The settings of topics, queues, subscriptions and mirrors as the node's OpenAPI document describes them, so that a
// new setting needs no new form.

import { get } from "./api.js";

const LABELS = {
  ageing: "Priority ageing", backoff: "Back-off", dead_letter: "Dead-letter topic", max_processing: "Longest processing",
  message_bytes_max: "Largest message", min_in_sync: "Minimum in sync", segment_age_s: "Segment age", segment_bytes: "Segment size",
  rename: "Copies are named", session_timeout: "Session timeout", start: "Start", sync_interval_ms: "Sync interval", topics: "Topics", visibility: "Visibility timeout",
};
const UNITS = [["Seconds", "s"], ["Milliseconds", "ms"], ["Bytes", "bytes"]];
let document_ = null;

const read = () => (document_ ??= get("/openapi.json").catch((error) => { document_ = null; throw error; }));

export const labelOf = (name) => LABELS[name] ?? (name[0].toUpperCase() + name.slice(1)).replaceAll("_", " ");

// Settings in their order: {name, label, about, kind, choices, least, most, unit, isOptional, isRequired,
// isSecret, without, standard}, or for a group {name, label, about, isOptional, settings}.
export async function settingsIn(name) {
  const { components: { schemas } } = await read();
  return inside(schemas[name], schemas, "");
}

function inside(schema, schemas, group) {
  return Object.entries(schema.properties).map(([field, given]) => {
    const kinds = (given.anyOf ?? [given]).map((one) => (one.$ref ? { ...schemas[one.$ref.split("/").pop()] } : one));
    const isOptional = kinds.some(({ type }) => type === "null");
    const [first, second] = kinds.filter(({ type }) => type !== "null");
    const { about, unit, without, standard } = told(given.description ?? "");
    const one = { name: group ? `${group}.${field}` : field, label: labelOf(field), about, unit, without, standard, isOptional,
      isRequired: schema.required?.includes(field) ?? false, example: given.examples?.[0] };
    if (first.properties) return { ...one, settings: inside(first, schemas, one.name) };
    const kind = first.enum ? "choice" : { boolean: "check", array: "list", string: "text" }[first.type] ?? (second ? "measure" : "number");
    return { ...one, kind, isSecret: first.format === "password", choices: first.enum, least: first.minimum, most: first.maximum };
  });
}

// The sentences of a description, apart from unit, meaning of null and default.
function told(text) {
  const standard = text.match(/ ?Default: (.*)\.$/), rest = standard ? text.slice(0, standard.index) : text;
  const without = rest.match(/ ?Null: (.*)\.$/), about = without ? rest.slice(0, without.index) : rest;
  const found = UNITS.find(([word]) => new RegExp(` ${word}(,[^.]*)?\\.$`).test(about));
  return { about: found ? about.replace(new RegExp(` ${found[0]}(,[^.]*)?\\.$`), "") : about, unit: found?.[1] ?? "",
    without: without?.[1] ?? "", standard: standard?.[1] ?? "" };
}
