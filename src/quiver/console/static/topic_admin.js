// Creating, altering and deleting topics.

import { call, get, part } from "./api.js";
import { el, notice } from "./dom.js";
import { settingsForm } from "./form.js";
import { messages as counted } from "./format.js";
import { confirmDelete, sheet } from "./sheet.js";

const FIRST = ["partitions", "replicas", "retention.age", "durability"];

export const nameField = (what, example) => {
  const input = el("input", { id: "new-name", required: true, autocomplete: "off", spellcheck: "false", placeholder: example, maxlength: "200", pattern: "[A-Za-z0-9_.\\-]+" });
  // The node takes a repeated creation for the same one: here it is a mistake.
  const path = async () => {
    const typed = input.value.trim(), wanted = `/${what}s/${part(typed)}`;
    const isThere = await get(wanted).then(() => true, () => false);
    if (isThere) throw new Error(`There is already a ${what} named ${typed}.`);
    return wanted;
  };
  return { path, element: el("div", { class: "field" }, el("label", { for: "new-name" }, "Name"), input,
    el("div", { class: "hint" }, `The ${what}'s name: letters, digits, '.', '_' and '-'.`)) };
};

export async function createTopic() {
  const name = nameField("topic", "orders"), form = await settingsForm("TopicFields", { first: FIRST });
  const save = async () => (await call("PUT", await name.path(), form.values())).name;
  const made = await sheet("New topic", [name.element, form.element], "Create topic", save, { fail: form.fail });
  if (made) { notice(`The topic ${made} is created.`); location.hash = `#/topics/${part(made)}`; }
}

export async function alterTopic(info) {
  const form = await settingsForm("TopicFields", { values: info.settings, first: FIRST, leave: ["partitions"] });
  return sheet(`Settings of ${info.name}`, form.element, "Save", () => call("PATCH", `/topics/${part(info.name)}`, form.values()), { fail: form.fail });
}

export async function deleteTopic(name) {
  const info = await get(`/topics/${part(name)}`);
  const messages = info.partitions.reduce((sum, one) => sum + (one.next_offset ?? 0) - (one.start_offset ?? 0), 0);
  const text = messages ? `The topic is deleted with ${counted(messages)}. This cannot be undone.` : "The topic has no messages. This cannot be undone.";
  if (await confirmDelete({ title: `Delete the topic ${name}?`, text, name, mustType: messages > 0, remove: () => call("DELETE", `/topics/${part(name)}`) })) {
    notice(`The topic ${name} is deleted.`);
    location.hash = "#/topics";
  }
}
