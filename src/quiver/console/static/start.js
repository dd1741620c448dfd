// What to do first on a node that has nothing yet.

import { token } from "./api.js";
import { button, el } from "./dom.js";
import { isOwn } from "./names.js";
import { createQueue } from "./queue_admin.js";

export const isEmpty = ({ topics, subscriptions }) => !topics.some(isOwn) && !subscriptions.some(isOwn);

const step = (title, ...rest) => el("li", {}, el("strong", {}, title), el("div", {}, rest));

export function startCard() {
  return el("section", { class: "card start", hidden: true },
    el("h2", {}, token.get() ? "Nothing here yet" : "This node is empty"),
    token.get() && el("p", { class: "hint" }, "Or nothing that your token may see."),
    el("p", { class: "hint" }, "Three steps to the first message:"),
    el("ol", {},
      step("Create a queue.", "It keeps messages until somebody has handled them. Its settings can be changed later."),
      step("Publish a message.", "The console opens the page for it as soon as the queue is there."),
      step("Receive it.", "From a program in any language: ", el("a", { href: "/docs" }, "the HTTP interface"), " shows how, or use ", el("code", {}, "quiver receive NAME"), ".")),
    button("Create a queue", () => createQueue({ then: "publish" })));
}
