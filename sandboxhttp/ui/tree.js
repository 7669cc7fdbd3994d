// Forks and snapshots as a picture: each below what it came from, with links.

import {path} from "./api.js";
import {actionsOf, removeSnapshot, rollback, titleOf} from "./actions.js";
import {create} from "./create.js";
import {element, empty, focusOn, keyed, link, part, setText, showState, time} from "./dom.js";
import {size} from "./format.js";
import {menuButton} from "./menu.js";
import {find, store, watch} from "./store.js";

export function tree(node) {
  const root = element("ul", {className: "tree", id: "tree"}), nothing = element("div");
  node.replaceChildren(element("h1", {tabIndex: -1}, "Forks and snapshots"), root, nothing);
  let none = null;
  function update() {
    if (!store.tree) return;
    const had = root.contains(document.activeElement);
    keyed(root, store.tree, n => n.id, make, show);
    if (had && !root.contains(document.activeElement)) focusOn(null);
    if (none === (store.tree.length === 0)) return;
    none = store.tree.length === 0;
    nothing.replaceChildren(...(none ? [empty("There are neither sandboxes nor snapshots", "Forks of a sandbox and its snapshots appear below it.", link("Sandboxes", "#/"))] : []));
  }
  update();
  return watch(update);
}

const isSnapshot = n => n.kind === "snapshot";

function actions(n) {
  if (!isSnapshot(n)) return actionsOf(find(n.id) ?? {...n, name: n.name, status: "unreachable"});
  const of = find(n.sandboxId);
  return [
    {label: "Create from …", act: () => create(n)}, ...(of ? [{label: `Roll ${of.name} back …`, act: () => rollback(of, n)}] : []),
    {label: "Delete …", act: () => removeSnapshot(n), danger: true},
  ];
}

function make(n) {
  const title = isSnapshot(n) ? element("strong", {}, titleOf(n)) : link(titleOf(n), "#/sandboxes/" + path(n.name));
  const box = element("div", {className: "node " + n.kind}, element("div", {className: "bar"}, element("span", {className: "kind"}, n.kind), title, element("span", {className: "how"}), menuButton((isSnapshot(n) ? "snapshot " : "") + titleOf(n), () => actions(n))),
    element("p", {className: "hint"}, ...(isSnapshot(n) ? [`of ${n.sandbox}, ${size(n.sizeBytes)}, `] : n.forkOf ? ["fork, "] : []), time(n.createdAt)));
  return element("li", {}, box, element("ul", {className: "below"}));
}

function show(row, n) {
  const s = isSnapshot(n) ? null : find(n.id), how = part(row, "how");
  if (s) showState(how, s.status);
  else setText(how, "");
  const below = row.lastElementChild;
  below.hidden = n.children.length === 0;
  keyed(below, n.children, n => n.id, make, show);
}
