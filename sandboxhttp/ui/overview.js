// The overview: totals, and the list of sandboxes with search, filters, order and actions on several.

import {path} from "./api.js";
import {actionsOf, remove, stop} from "./actions.js";
import {spark} from "./chart.js";
import {create} from "./create.js";
import {button, element, empty, focusOn, keyed, link, part, setAttribute, setText, showState, time} from "./dom.js";
import {count, percent, size} from "./format.js";
import {menuButton} from "./menu.js";
import {last, runs, store, watch} from "./store.js";

// What is shown, kept while other views are: the filters, the order and the selected sandboxes, by ID.
const wanted = {text: "", status: "", tag: "", order: "created", down: true, selected: new Set()};

const values = {
  name: s => s.name, status: s => s.status, image: s => s.image, created: s => s.createdAt,
  cpu: s => last(s.id)?.cpu ?? -1, memory: s => last(s.id)?.memory ?? -1,
};

const tagsOf = s => Object.entries(s.tags ?? {}).map(([key, value]) => `${key}=${value}`);

function shown() {
  const words = wanted.text.toLowerCase().split(/\s+/).filter(Boolean), value = values[wanted.order];
  const some = store.sandboxes.filter(s => {
    const text = [s.name, s.id, s.image, ...tagsOf(s)].join(" ").toLowerCase();
    return words.every(word => text.includes(word)) && (!wanted.status || s.status === wanted.status) && (!wanted.tag || tagsOf(s).includes(wanted.tag));
  });
  const order = (a, b) => value(a) < value(b) ? -1 : value(a) > value(b) ? 1 : 0;
  return some.sort((a, b) => (wanted.down ? order(b, a) : order(a, b)) || (a.name < b.name ? -1 : 1));
}

// overview shows the overview in a node, until the returned function is called.
export function overview(node) {
  const totals = element("section", {className: "totals", "aria-label": "Totals"});
  const search = element("input", {type: "search", id: "search", placeholder: "Search names, images and tags", "aria-label": "Search sandboxes", value: wanted.text, spellcheck: false, autocomplete: "off"});
  const status = element("select", {id: "status", "aria-label": "Status"}), tag = element("select", {id: "tag", "aria-label": "Tag"});
  const bulk = element("div", {className: "bulk", role: "group", "aria-label": "Selected sandboxes"});
  const body = element("tbody", {id: "list", role: "rowgroup"}), all = element("input", {type: "checkbox", name: "all", "aria-label": "Select all that are shown"});
  const columns = [["name", "Name"], ["status", "Status"], ["image", "Image"], ["cpu", "CPU"], ["memory", "Memory"], ["created", "Created"]];
  const heads = columns.map(([key, text]) => element("th", {scope: "col", role: "columnheader", className: key}, button(text, () => sort(key), {className: "sort"})));
  const table = element("table", {role: "table", "aria-label": "Sandboxes"},
    element("thead", {role: "rowgroup"}, element("tr", {role: "row"}, element("th", {scope: "col", role: "columnheader", className: "check"}, all), ...heads,
      element("th", {scope: "col", role: "columnheader", className: "actions"}, element("span", {className: "unseen"}, "Actions")))), body);
  const order = element("select", {id: "order", className: "narrow", "aria-label": "Order"}, ...columns.map(([key, text]) => element("option", {value: key}, "By " + text)));
  const nothing = element("div", {id: "list-empty"});
  const bar = element("div", {className: "filters"}, search, status, tag, order);
  node.replaceChildren(element("h1", {tabIndex: -1}, "Sandboxes"), totals, bar, bulk, element("div", {className: "list"}, table), nothing);
  const [sandboxes, cpu, memory, disk] = ["Sandboxes", "CPU", "Memory", "Disk"].map(total);
  totals.append(...[sandboxes, cpu, memory, disk].map(t => t.node));

  search.oninput = () => { wanted.text = search.value; update(); };
  status.onchange = () => { wanted.status = status.value; update(); };
  tag.onchange = () => { wanted.tag = tag.value; update(); };
  order.onchange = () => { wanted.order = order.value; wanted.down = order.value === "created"; update(); };
  all.onchange = () => {
    wanted.selected = new Set(all.checked ? shown().map(s => s.id) : []);
    update();
  };

  function sort(key) {
    wanted.down = wanted.order === key ? !wanted.down : key === "created" || key === "cpu" || key === "memory";
    wanted.order = key;
    update();
  }

  function showTotals() {
    const by = new Map();
    for (const s of store.sandboxes) by.set(s.status, (by.get(s.status) ?? 0) + 1);
    sandboxes.set(String(store.sandboxes.length), [...by].map(([name, n]) => `${n} ${name}`).join(", ") || "none yet", (by.get("running") ?? 0) / (store.sandboxes.length || 1));
    const used = store.sandboxes.map(s => last(s.id)).filter(Boolean), {cpus = 0, memoryBytes = 0} = store.health ?? {};
    const busy = used.reduce((sum, u) => sum + u.cpu, 0), held = used.reduce((sum, u) => sum + u.memory, 0);
    cpu.set(percent(busy), cpus ? `of ${count(cpus, "CPU")}` : "", busy / (100 * cpus || 1));
    memory.set(size(held), memoryBytes ? "of " + size(memoryBytes) : "", held / (memoryBytes || 1));
    const owned = store.volumes?.reduce((sum, v) => sum + Math.max(0, v.sizeBytes), 0), kept = store.snapshots.reduce((sum, n) => sum + n.sizeBytes, 0);
    disk.set(owned === undefined ? "…" : size(owned), owned === undefined ? "being measured" : `in ${count(store.volumes.length, "volume")}, and ${size(kept)} in ${count(store.snapshots.length, "snapshot")}`);
  }

  function showFilters() {
    const states = [...new Set(store.sandboxes.map(s => s.status))].sort(), tags = [...new Set(store.sandboxes.flatMap(tagsOf))].sort();
    choices(status, "Every status", states, wanted.status);
    choices(tag, "Every tag", tags, wanted.tag);
    tag.hidden = tags.length === 0 && !wanted.tag;
    order.value = wanted.order;
    heads.forEach((head, i) => setAttribute(head, "aria-sort", columns[i][0] === wanted.order ? wanted.down ? "descending" : "ascending" : "none"));
  }

  function showBulk() {
    for (const id of wanted.selected) if (!store.sandboxes.some(s => s.id === id)) wanted.selected.delete(id);
    const some = store.sandboxes.filter(s => wanted.selected.has(s.id));
    const had = bulk.contains(document.activeElement);
    bulk.hidden = some.length === 0;
    if (had && bulk.hidden) focusOn(null);
    if (bulk.dataset.ids === some.map(s => s.id + s.status).join()) return;
    bulk.dataset.ids = some.map(s => s.id + s.status).join();
    const now = () => store.sandboxes.filter(s => wanted.selected.has(s.id));
    if (!bulk.firstChild) bulk.append(element("span", {}), button("Stop …", () => stop(now())), button("Delete …", () => remove(now()), {className: "danger"}), button("Clear selection", () => { wanted.selected.clear(); update(); }));
    setText(bulk.firstChild, count(some.length, "sandbox", "sandboxes") + " selected");
    bulk.children[1].disabled = !some.some(runs);
  }

  function update() {
    if (!store.loaded) return;
    showTotals();
    showFilters();
    const some = shown(), had = body.contains(document.activeElement);
    keyed(body, some, s => s.id, makeRow, updateRow);
    if (had && !body.contains(document.activeElement)) focusOn(null);
    table.hidden = some.length === 0;
    bar.hidden = store.sandboxes.length === 0;
    all.checked = some.length > 0 && some.every(s => wanted.selected.has(s.id));
    all.indeterminate = !all.checked && wanted.selected.size > 0;
    showBulk();
    showNothing(some.length > 0);
  }

  function showNothing(any) {
    const what = any ? "" : store.sandboxes.length ? "filtered" : "none";
    if (nothing.dataset.what === what) return;
    nothing.dataset.what = what;
    nothing.replaceChildren(...(what === "none" ? [empty("There are no sandboxes yet", "A sandbox is an isolated Linux environment with a terminal, files and a network policy of its own.", button("Create the first sandbox", () => create(), {className: "primary"}))]
      : what ? [empty("No sandbox matches", "Other words, another status or another tag may find it.", button("Clear the filters", () => {
        Object.assign(wanted, {text: "", status: "", tag: ""});
        search.value = "";
        update();
        search.focus();
      }))] : []));
  }

  function makeRow(s) {
    const now = () => store.sandboxes.find(other => other.id === s.id) ?? s;
    const cell = (name, label, ...children) => element("td", {className: name, role: "cell", "data-label": label}, ...children);
    const check = element("input", {type: "checkbox", name: "selected", "aria-label": "Select " + s.name, onchange: () => {
      if (check.checked) wanted.selected.add(s.id);
      else wanted.selected.delete(s.id);
      update();
    }});
    return element("tr", {role: "row"}, cell("check", "", check),
      element("th", {scope: "row", role: "rowheader", className: "name"}, link(s.name, "#/sandboxes/" + path(s.name)), element("span", {className: "tags"})),
      cell("status", "Status", element("span", {})), cell("image", "Image"), cell("cpu", "CPU"), cell("memory", "Memory"), cell("created", "Created", time(s.createdAt)),
      cell("actions", "", menuButton(s.name, () => actionsOf(now()))));
  }

  function updateRow(row, s) {
    showState(part(row, "status").firstChild, s.status);
    setText(part(row, "image"), s.image);
    row.querySelector("input").checked = wanted.selected.has(s.id);
    row.classList.toggle("selected", wanted.selected.has(s.id));
    keyed(part(row, "tags"), tagsOf(s), text => text, text => element("span", {className: "chip"}, text));
    spark(part(row, "cpu"), s.id, u => u.cpu, percent, 100);
    spark(part(row, "memory"), s.id, u => u.memory, size, last(s.id)?.limit);
  }

  update();
  return watch(update);
}

function choices(select, first, values, chosen) {
  const all = ["", ...values, ...(chosen && !values.includes(chosen) ? [chosen] : [])];
  keyed(select, all, value => value, value => element("option", {value}, value || first));
  select.value = chosen;
}

// total is one of the figures on top, with a bar if it is a part of something.
function total(name) {
  const value = element("strong", {}), note = element("span", {className: "hint"}), bar = element("span", {className: "meter", "aria-hidden": "true", hidden: true}, element("span"));
  return {
    node: element("div", {className: "total", "data-total": name}, element("span", {className: "label"}, name), value, note, bar),
    set(text, more, share) {
      setText(value, text);
      setText(note, more);
      bar.hidden = share === undefined;
      bar.firstChild.style.width = Math.min(100, 100 * (share ?? 0)) + "%";
    },
  };
}
