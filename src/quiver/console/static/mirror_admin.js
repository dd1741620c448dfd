// Adding, altering, pausing, promoting and removing mirrors.

import { call, part } from "./api.js";
import { ask, notice } from "./dom.js";
import { settingsForm } from "./form.js";
import { sheet } from "./sheet.js";
import { nameField } from "./topic_admin.js";

const FIRST = ["source", "topics", "token", "with_subscriptions"];

const pathOf = (name) => `/mirrors/${part(name)}`;

export async function addMirror() {
  const name = nameField("mirror", "eu"), form = await settingsForm("MirrorFields", { first: FIRST, leave: ["paused"] });
  const save = async () => (await call("PUT", await name.path(), form.values())).name;
  const made = await sheet("New mirror", [name.element, form.element], "Add mirror", save, { fail: form.fail });
  if (made) { notice(`The mirror ${made} is added.`); location.hash = `#${pathOf(made)}`; }
}

// The token is never shown: what is typed in its place is another one.
export async function alterMirror({ name, settings }) {
  const form = await settingsForm("MirrorChanges", { values: settings, first: FIRST, leave: ["paused"] });
  const changed = await sheet(`Settings of ${name}`, form.element, "Save", () => call("PATCH", pathOf(name), form.values()), { fail: form.fail });
  if (changed) notice("The settings are saved.");
}

export async function pauseMirror(name, paused) {
  await call("PATCH", pathOf(name), { paused });
  notice(paused ? `The mirror ${name} is paused.` : `The mirror ${name} goes on.`);
}

export async function promoteCopies(name, copies) {
  const text = `${copies.join(", ")} will take publishes here, and their source is asked to take none any more. This cannot be undone.`;
  if (!await ask(`Promote the copies of ${name}?`, text, "Promote")) return;
  const { topics } = await call("POST", "/promote", { topics: copies });
  const lacking = topics.filter((one) => !one.complete).map((one) => `${one.name} (${one.error})`);
  if (lacking.length) notice(`Promoted without everything of the source: ${lacking.join(", ")}`, true);
  else notice("The copies are promoted.");
}

export async function removeMirror(name, copies) {
  const rest = copies.length ? `${copies.join(", ")} will stay as they are, and take no publishes until they are promoted.` : "It has no copies.";
  if (!await ask(`Remove the mirror ${name}?`, `Nothing is copied any more. ${rest}`, "Remove")) return;
  await call("DELETE", pathOf(name));
  notice(`The mirror ${name} is removed.`);
  location.hash = "#/mirrors";
}
