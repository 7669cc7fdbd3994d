// The snapshots of a sandbox.

import {removeSnapshot, rollback, snapshot, titleOf} from "./actions.js";
import {create} from "./create.js";
import {button, element, empty, keyed, link, time} from "./dom.js";
import {size} from "./format.js";
import {find, store} from "./store.js";

export function snapshots(node, s) {
  const list = element("ul", {className: "cards", id: "snapshots"}), nothing = element("div");
  const now = () => find(s.id) ?? s;
  node.append(element("div", {className: "bar"}, button("Take snapshot …", () => snapshot(now()), {className: "primary"}), link("All forks and snapshots", "#/tree")), list, nothing);
  const make = n => element("li", {className: "card"}, element("div", {className: "bar"}, element("strong", {}, titleOf(n)), element("span", {className: "hint"}, size(n.sizeBytes) + ", ", time(n.createdAt))),
    element("div", {className: "bar"}, button("Roll back …", () => rollback(now(), n), {"aria-label": "Roll back to " + titleOf(n)}),
      button("Create from …", () => create(n), {"aria-label": "Create from " + titleOf(n)}), button("Delete …", () => removeSnapshot(n), {className: "danger", "aria-label": "Delete snapshot " + titleOf(n)})));
  return {
    update(s) {
      const own = store.snapshots.filter(n => n.sandboxId === s.id).sort((a, b) => a.createdAt < b.createdAt ? 1 : -1);
      const had = list.contains(document.activeElement);
      keyed(list, own, n => n.id, make);
      if (had && !list.contains(document.activeElement)) document.querySelector("main h1").focus();
      nothing.replaceChildren(...(own.length ? [] : [empty("No snapshots yet", "A snapshot keeps all files as they are now. Roll back to it, or create sandboxes from it.")]));
    },
    end() {},
  };
}
