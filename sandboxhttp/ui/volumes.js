// The volumes, by sandbox, and those that no sandbox uses.

import {path} from "./api.js";
import {cleanup, removeVolume} from "./actions.js";
import {button, element, empty, focusOn, keyed, link, part, setText, time} from "./dom.js";
import {count, size} from "./format.js";
import {store, watch} from "./store.js";

const sum = all => all.reduce((total, v) => total + Math.max(0, v.sizeBytes), 0);
const roles = {workspace: "workspace", rwcopy: "copy of a directory", fork: "copy of a fork", image: "declared by the image", "": "other"};

export function volumes(node) {
  const orphans = element("section", {className: "panel orphans", "aria-labelledby": "orphans-title"}, element("h2", {id: "orphans-title"}, "Not used by any sandbox"),
    element("p", {className: "hint"}), element("div", {className: "bar"}, button("Delete all of these …", cleanup, {id: "cleanup", className: "danger"})), element("ul", {className: "volumes"}));
  const groups = element("div", {id: "volumes"}), nothing = element("div");
  node.replaceChildren(element("h1", {tabIndex: -1}, "Volumes"), orphans, groups, nothing);

  function update() {
    const all = store.volumes;
    if (!all) {
      if (!nothing.firstChild) nothing.append(element("p", {className: "hint"}, "Sizes are being measured …"));
      orphans.hidden = true;
      return;
    }
    const unused = all.filter(v => v.orphaned), by = new Map();
    for (const v of all) for (const name of v.orphaned ? [] : v.sandboxes?.length ? v.sandboxes : [""]) by.set(name, [...(by.get(name) ?? []), v]);
    const had = node.contains(document.activeElement);
    orphans.hidden = unused.length === 0;
    setText(part(orphans, "hint"), `${count(unused.length, "volume")}; deleting them frees ${size(sum(unused))}.`);
    keyed(part(orphans, "volumes"), unused, v => v.name, make, show);
    keyed(groups, [...by].map(([name, some]) => ({name, some})).sort((a, b) => a.name < b.name ? -1 : 1), g => g.name || "-", makeGroup, showGroup);
    if (had && document.activeElement === document.body) focusOn(null);
    const none = all.length === 0;
    if (none !== (nothing.dataset.none === "true") || nothing.dataset.none === undefined) {
      nothing.dataset.none = none;
      nothing.replaceChildren(...(none ? [empty("There are no volumes", "Each sandbox has one for its workspace. They outlive it unless they are deleted with it.", link("Sandboxes", "#/"))] : []));
    }
  }

  update();
  return watch(update);
}

const makeGroup = ({name}) => element("section", {className: "panel"}, element("div", {className: "bar"}, element("h2", {}, name ? link(name, "#/sandboxes/" + path(name)) : "Without a sandbox"), element("span", {className: "hint"})), element("ul", {className: "volumes"}));

function showGroup(row, {some}) {
  setText(part(row, "hint"), `${count(some.length, "volume")}, ${size(sum(some))}`);
  keyed(part(row, "volumes"), some, v => v.name, make, show);
}

function make(v) {
  return element("li", {}, element("code", {}, v.name), element("span", {className: "role chip"}, roles[v.role] ?? v.role), element("span", {className: "size"}), element("span", {className: "hint"}, time(v.createdAt)),
    ...(v.orphaned ? [button("Delete …", () => removeVolume(v), {"aria-label": "Delete volume " + v.name})] : []));
}

function show(row, v) {
  setText(part(row, "size"), size(v.sizeBytes) + (v.sharedBytes > 0 ? ` and ${size(v.sharedBytes)} shared` : ""));
  row.title = v.warning ?? "";
}
