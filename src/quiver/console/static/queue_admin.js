// Creating, altering and deleting queues and subscriptions.

import { call, get, part } from "./api.js";
import { el, notice } from "./dom.js";
import { settingsForm } from "./form.js";
import { messages } from "./format.js";
import { confirmDelete, sheet } from "./sheet.js";
import { nameField } from "./topic_admin.js";

const OF_QUEUE = ["visibility", "max_deliveries", "partitions"];
const OF_SUBSCRIPTION = ["topics", "start", "filter", "ordering", "visibility", "max_deliveries"];

async function create(kind, schema, first, example, { leave, then = "queues" } = {}) {
  const name = nameField(kind, example), form = await settingsForm(schema, { first, leave });
  const save = async () => (await call("PUT", await name.path(), form.values())).name;
  const made = await sheet(`New ${kind}`, [name.element, form.element], `Create ${kind}`, save, { fail: form.fail });
  if (made) { notice(`The ${kind} ${made} is created.`); location.hash = `#/${then}/${part(made)}`; }
}

export const createQueue = ({ then } = {}) => create("queue", "QueueFields", OF_QUEUE, "emails", { then });
export const createSubscription = () => create("subscription", "SubscriptionFields", OF_SUBSCRIPTION, "billing", { leave: ["start_time"] });

const pathOf = ({ name, is_queue: isQueue }) => `/${isQueue ? "queues" : "subscriptions"}/${part(name)}`;

export async function alterQueue(info) {
  const stored = info.is_queue ? (await get(`/topics/${part(info.name)}`)).settings : {};
  const schema = info.is_queue ? "QueueChanges" : "SubscriptionChanges";
  const form = await settingsForm(schema, { values: { ...stored, ...info.settings }, first: info.is_queue ? OF_QUEUE : OF_SUBSCRIPTION, leave: ["partitions"] });
  return sheet(`Settings of ${info.name}`, form.element, "Save", () => call("PATCH", pathOf(info), form.values()), { fail: form.fail });
}

// A queue takes its topic with it. Its dead-letter queue stays if there is something in it, unless that is
// wanted gone, too.
export async function deleteQueue(name) {
  const info = await get(`/subscriptions/${part(name)}`);
  const letters = info.settings.dead_letter ?? `${name}.dlq`;
  const pending = (info.ready ?? 0) + (info.unseen ?? 0) + (info.delayed ?? 0) + (info.leased ?? 0), dead = info.dead ?? 0;
  const hasLetters = info.is_queue && !info.settings.dead_letter && dead > 0;
  const input = el("input", { type: "checkbox" });
  const what = info.is_queue ? "queue" : "subscription";
  const also = hasLetters && { input, label: `Delete its dead-letter queue ${letters} too, with ${messages(dead)}` };
  const text = `${pending ? `${messages(pending)} ${pending === 1 ? "is" : "are"} pending. ` : ""}${info.is_queue ? "The queue and all its messages are deleted." : "The messages stay in their topics."} This cannot be undone.`;
  const remove = async () => {
    await call("DELETE", pathOf(info));
    if (hasLetters && input.checked) await call("DELETE", `/queues/${part(letters)}`);
  };
  if (await confirmDelete({ title: `Delete the ${what} ${name}?`, text, name, mustType: pending + dead > 0, also, remove })) {
    notice(`The ${what} ${name} is deleted.`);
    location.hash = "#/queues";
  }
}
