// The page: lists that follow the engine, and the actions on what they show.

import {call, date, element, path, setText, setToken, size, streamURL} from "./api.js";
import {ask} from "./dialog.js";
import {openTerminal, plain} from "./terminal.js";

const byId = id => document.getElementById(id);
const pause = ms => new Promise(done => setTimeout(done, ms));
const fail = error => setText(byId("trouble"), error.message);
const clearTrouble = () => {
  setText(byId("trouble"), "");
  delete byId("trouble").dataset.by;
};
const say = text => setText(byId("news"), text);

let sandboxes = [], volumes = [], snapshots = []; // as the server listed them last
let selected = null; // the ID of the sandbox whose details are shown
const usage = new Map(); // by ID: {details, cpu: [], memory: []}

// A poll repeats a request while the page is visible, and on demand. An answer that comes after
// that of a later request is dropped.
function poll(every, work) {
  let asked = 0, shown = 0;
  const now = async () => {
    const mine = ++asked;
    const show = await work();
    if (mine < shown) return;
    shown = mine;
    show?.();
  };
  (async () => {
    for (let wait;; await pause(wait)) {
      wait = Math.min(every, 5000); // until there is an answer
      if (document.hidden) continue;
      try {
        await now();
        wait = every;
        if (byId("trouble").dataset.by === "poll") setText(byId("trouble"), "");
      } catch (error) {
        if (error.status === 401) error.stale || await askToken();
        else if (error.status !== 404 && error.status !== 409) { // else the sandbox has gone or ended meanwhile
          byId("trouble").dataset.by = "poll";
          fail(error);
        }
      }
    }
  })();
  return now;
}

let tokenAsked = null;
function askToken() {
  return tokenAsked ??= ask({
    title: "Token", verb: "Continue", fields: [{name: "token", label: "Token, as the server has printed it", type: "password", required: true}], late: fail,
    run: async ({token}) => {
      setToken(token);
      await call("GET", "health");
      await Promise.all([refresh(), refreshVolumes()]);
    },
  }).finally(() => { tokenAsked = null; });
}

// children makes the children of a node one for each item. It keeps those that there are, so that
// the focus remains.
function children(node, items, id, make, update) {
  const old = new Map([...node.children].map(row => [row.dataset.id, row]));
  for (const [key, row] of old) if (!items.some(item => id(item) === key)) row.remove();
  items.forEach((item, i) => {
    const key = id(item), row = old.get(key) ?? make(item);
    row.dataset.id = key;
    if (node.children[i] !== row) node.insertBefore(row, node.children[i] ?? null);
    update(row, item);
  });
}

// rows does that for a list of the page. If the child with the focus goes, the heading gets it.
function rows(node, ...rest) {
  const had = node.contains(document.activeElement);
  children(node, ...rest);
  const empty = node.children.length === 0;
  (node.closest(".wide") ?? node).hidden = empty;
  byId(node.id + "-empty").hidden = !empty;
  if (had && !node.contains(document.activeElement)) byId(node.id + "-title").focus();
}

const cell = (name, ...children) => element("td", {className: name}, ...children);
const button = (text, act, label) => element("button", {type: "button", onclick: act, "aria-label": label ?? text}, text);
const part = (row, name) => row.querySelector("." + name);

// --- sandboxes

const refresh = poll(2000, async () => {
  const [list, tree, health] = await Promise.all([call("GET", "sandboxes"), call("GET", "snapshots/tree"), call("GET", "health")]);
  return () => {
    sandboxes = list;
    byId("create").disabled = false;
    setText(byId("engine"), `Engine ${health.version} on ${health.host}, ${list.length} ${list.length === 1 ? "sandbox" : "sandboxes"}`);
    rows(byId("list"), list, s => s.id, makeRow, updateRow);
    showTree(tree);
    const now = list.find(s => s.id === selected);
    if (selected && !now) closeDetails();
    if (now) updateFacts(now);
  };
});

function makeRow(s) {
  const {id} = s;
  const current = () => sandboxes.find(s => s.id === id) ?? s;
  return element("tr", {},
    element("th", {scope: "row"}, element("button", {type: "button", className: "link", onclick: () => showDetails(current()), "aria-controls": "details"}, s.name)),
    cell("status"), cell("image"), cell("cpu number"), cell("memory number"), cell("created", date(s.createdAt)),
    cell("actions",
      element("button", {type: "button", className: "session", onclick: () => startOrStop(current())}),
      button("Fork", () => fork(current()), "Fork " + s.name), button("Snapshot", () => snapshot(current()), "Snapshot of " + s.name),
      button("Delete", () => remove(current()), "Delete " + s.name)));
}

const runs = s => s.status === "running" || s.status === "paused";

function updateRow(row, s) {
  const status = part(row, "status"), session = part(row, "session"), verb = runs(s) ? "Stop" : "Start";
  setText(status, s.status);
  status.dataset.status = s.status;
  setText(part(row, "image"), s.image);
  setText(session, verb);
  session.disabled = s.status === "creating";
  session.setAttribute("aria-label", verb + " " + s.name);
  row.querySelector(".link").setAttribute("aria-expanded", String(s.id === selected));
  if (!runs(s)) usage.delete(s.id);
  const seen = usage.get(s.id);
  spark(part(row, "cpu"), seen?.cpu, n => Math.round(n) + " %", 100 * (seen?.details.settings.vcpus ?? 1));
  spark(part(row, "memory"), seen?.memory, size, seen?.details.usage.memoryLimit);
}

const history = 30;

poll(3000, async () => {
  for (const {id} of sandboxes.filter(s => s.status === "running")) {
    const details = await call("GET", path("sandboxes", id)).catch(error => error.status === 404 ? {} : Promise.reject(error));
    if (!details.usage) continue;
    const seen = usage.get(id) ?? {cpu: [], memory: []};
    seen.details = details;
    for (const [list, value] of [[seen.cpu, details.usage.cpuPercent], [seen.memory, details.usage.memoryBytes]]) if (list.push(value) > history) list.shift();
    usage.set(id, seen);
    const row = byId("list").querySelector(`[data-id="${CSS.escape(id)}"]`), now = sandboxes.find(s => s.id === id);
    if (row && now) updateRow(row, now);
  }
});

// spark shows the last of some values as text, and all as a line.
function spark(node, values = [], format, most) {
  if (!node.firstChild) {
    const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
    svg.setAttribute("viewBox", `0 0 ${history - 1} 16`);
    svg.setAttribute("preserveAspectRatio", "none");
    svg.setAttribute("aria-hidden", "true");
    svg.append(document.createElementNS(svg.namespaceURI, "polyline"));
    node.append(svg, element("span"));
  }
  const top = Math.max(most || 1, ...values), left = history - values.length;
  const points = values.map((value, i) => `${left + i},${(15 - 14 * value / top).toFixed(1)}`);
  node.querySelector("polyline").setAttribute("points", points.join(" "));
  setText(node.querySelector("span"), values.length ? format(values.at(-1)) : "–");
}

// --- actions

// act shows the plan of an action and does it: run returns what to say then.
async function act(options) {
  clearTrouble();
  const run = async values => say(await options.run(values));
  if (await ask({late: fail, ...options, run})) await Promise.all([refresh(), refreshVolumes()]).catch(fail);
}

function create(from) {
  act({
    title: from ? "Create a sandbox from snapshot " + (from.name || from.id) : "New sandbox", verb: "Create",
    fields: [
      {name: "name", label: "Name", hint: "Empty: a name is chosen."},
      ...(from ? [] : [{name: "image", label: "Image", hint: "Empty: the default image."}]),
      {name: "command", label: "Main process", hint: "A shell command that each session starts. Empty: none."},
      {name: "network", label: "Network policy", options: ["allow-all", "public-only", "deny-all"], hint: "Empty: allow-all. Or lists, such as allow=*.example.com"},
      {name: "vcpus", label: "CPUs", type: "number", min: 0.1, step: "any"},
      {name: "memory", label: "Memory in MB", type: "number", min: 16},
    ],
    plan: v => [
      v.name ? `A sandbox ${v.name}, kept until it is deleted` : "A sandbox with a chosen name, kept until it is deleted",
      from ? `Files: those of the snapshot, ${size(from.sizeBytes)}` : `Image: ${v.image || "the default"}, pulled if the engine does not have it; a new, empty volume for the workspace`,
      v.command ? `Main process: sh -c ${JSON.stringify(v.command)}` : from ? "Main process: that of the snapshot" : "No main process",
      `Network policy: ${v.network || "allow-all"}`,
      `Limits: ${v.vcpus ?? "default"} CPUs, ${v.memory === null ? "default" : v.memory + " MB"} of memory`,
    ],
    run: async v => {
      const body = {};
      if (v.network) body.network = v.network;
      if (v.name) body.name = v.name;
      if (v.image) body.image = v.image;
      if (v.command) body.command = ["sh", "-c", v.command];
      if (v.vcpus !== null) body.vcpus = v.vcpus;
      if (v.memory !== null) body.memoryBytes = Math.round(v.memory * (1 << 20));
      if (from) body.source = {snapshot: from.id};
      return `Created ${(await call("POST", "sandboxes", body)).name}.`;
    },
  });
}

const ofSandbox = s => volumes.filter(v => v.sandboxes?.includes(s.name));

function fork(s) {
  act({
    title: "Fork " + s.name, verb: "Fork",
    fields: [{name: "count", label: "Number of forks", type: "number", value: 1, min: 1, max: 100, required: true}, {name: "name", label: "Name", hint: "Only for one fork. Empty: a name is chosen."}],
    plan: v => [
      `${v.count === 1 ? "A new sandbox" : v.count + " new sandboxes"} with the settings and all files of ${s.name}`,
      ...ofSandbox(s).map(volume => `Copy of volume ${volume.name}, ${size(volume.sizeBytes)}`),
      ...(runs(s) ? [`The processes of ${s.name} are stopped while the files are copied, and continue then`] : []),
    ],
    run: async v => {
      const made = [await call("POST", path("sandboxes", s.id, "fork"), v.count === 1 ? (v.name ? {name: v.name} : {}) : {count: v.count, ...(v.name && {name: v.name})})].flat();
      return `Created ${made.map(f => f.name).join(", ")}.`;
    },
  });
}

function snapshot(s) {
  act({
    title: "Snapshot of " + s.name, verb: "Take snapshot", fields: [{name: "name", label: "Name", hint: "Optional."}],
    plan: () => [`Copy of all files of ${s.name}`, ...ofSandbox(s).map(volume => `Volume ${volume.name}, ${size(volume.sizeBytes)}`)],
    run: async v => {
      const made = await call("POST", path("sandboxes", s.id, "snapshots"), v.name ? {name: v.name} : {});
      return `Took snapshot ${made.name || made.id} of ${s.name}.`;
    },
  });
}

async function startOrStop(s) {
  if (!runs(s)) {
    try {
      clearTrouble();
      say(`Starting ${s.name} …`);
      await call("POST", path("sandboxes", s.id, "start"));
      say(`Started ${s.name}.`);
      return await refresh();
    } catch (error) {
      say("");
      return fail(error);
    }
  }
  act({
    title: "Stop " + s.name, verb: "Stop",
    plan: () => [
      `Its processes get SIGTERM, and SIGKILL after ${s.settings.stopTimeoutMs / 1000} s`,
      s.settings.persistent ? "Its files are kept" : "It is not persistent: it may be removed with its files once its session has ended",
    ],
    run: () => call("POST", path("sandboxes", s.id, "stop"), {}).then(() => `Stopped ${s.name}.`),
  });
}

function remove(s) {
  const own = snapshots.filter(n => n.sandboxId === s.id);
  act({
    title: "Delete " + s.name, verb: "Delete", danger: true,
    fields: [{name: "volumes", label: "Delete its volumes, too", type: "checkbox"}, ...(own.length ? [{name: "snapshots", label: "Delete its snapshots, too", type: "checkbox"}] : [])],
    plan: v => [
      ...(runs(s) ? ["Its session ends"] : []), `Sandbox ${s.name} is deleted, with its files outside of volumes`,
      ...ofSandbox(s).map(volume => `Volume ${volume.name}, ${size(volume.sizeBytes)}: ${v.volumes ? "deleted, unless another sandbox uses it" : "kept"}`),
      ...own.map(n => `Snapshot ${n.name || n.id}, ${size(n.sizeBytes)}: ${v.snapshots ? "deleted" : "kept"}`),
    ],
    run: async v => {
      const report = await call("DELETE", path("sandboxes", s.id) + `?preserveVolume=${!v.volumes}&snapshots=${Boolean(v.snapshots)}`);
      return `Deleted ${s.name}. ${report.volumes.map(o => `Volume ${o.name}: ${o.status}.`).join(" ")}`;
    },
  });
}

// --- forks and snapshots

function showTree(tree) {
  const flat = nodes => nodes.flatMap(n => [n, ...flat(n.children)]);
  snapshots = flat(tree).filter(n => n.kind === "snapshot");
  rows(byId("tree"), tree, n => n.id, makeNode, updateNode);
}

function makeNode(n) {
  const name = n.name || n.id, row = element("li", {}, element("span", {className: "kind"}, n.kind), " ", element("strong", {}, name), " ");
  if (n.kind === "snapshot") {
    row.append(`of ${n.sandbox}, ${size(n.sizeBytes)}, ${date(n.createdAt)} `, element("span", {className: "actions"},
      button("Create from", () => create(n), "Create from snapshot " + name), button("Delete", () => removeSnapshot(n), "Delete snapshot " + name)));
  } else {
    row.append(date(n.createdAt));
  }
  row.append(element("ul"));
  return row;
}

function updateNode(row, n) {
  const below = row.lastElementChild;
  below.hidden = n.children.length === 0;
  children(below, n.children, n => n.id, makeNode, updateNode);
}

function removeSnapshot(n) {
  const name = n.name || n.id;
  act({
    title: "Delete snapshot " + name, verb: "Delete", danger: true,
    plan: () => [`Snapshot ${name} of ${n.sandbox}, ${size(n.sizeBytes)}, is deleted`, "Sandboxes that were created from it remain"],
    run: () => call("DELETE", path("snapshots", n.id)).then(() => `Deleted snapshot ${name}.`),
  });
}

// --- volumes

// Seldom: for the sizes the engine starts a container that looks at all files.
const refreshVolumes = poll(60000, async () => {
  const list = await call("GET", "volumes");
  return () => {
    volumes = list;
    byId("cleanup").disabled = !list.some(v => v.orphaned);
    rows(byId("volumes"), list, v => v.name, makeVolume, updateVolume);
  };
});

function makeVolume(v) {
  const current = () => volumes.find(other => other.name === v.name) ?? v;
  return element("tr", {}, element("th", {scope: "row"}, v.name), cell("role", v.role || "other"), cell("size number"), cell("users"),
    cell("created", date(v.createdAt)), cell("actions", button("Delete", () => removeVolume(current()), "Delete volume " + v.name)));
}

function updateVolume(row, v) {
  setText(part(row, "size"), size(v.sizeBytes));
  setText(part(row, "users"), v.orphaned ? "orphaned" : (v.sandboxes ?? []).join(", ") || "–");
  part(row, "users").dataset.status = v.orphaned ? "orphaned" : "";
  row.querySelector("button").disabled = !v.orphaned; // the others go with their sandboxes
}

function removeVolume(v) {
  act({
    title: "Delete volume", verb: "Delete", danger: true, plan: () => [`Volume ${v.name}, ${size(v.sizeBytes)}, is deleted with its files`],
    run: () => call("DELETE", path("volumes", v.name)).then(() => `Deleted volume ${v.name}.`),
  });
}

byId("cleanup").onclick = async () => {
  try {
    const plan = await call("POST", "volumes/cleanup", {dryRun: true});
    const names = plan.removed ?? [];
    act({
      title: "Delete orphaned volumes", verb: "Delete", danger: true,
      plan: () => [`${names.length} volumes that no sandbox uses are deleted, which frees ${size(plan.freedBytes)}`, ...names.map(name => `Volume ${name}`)],
      run: async () => {
        const done = await call("POST", "volumes/cleanup", {names});
        return `Deleted ${done.removed?.length ?? 0} volumes, ${size(done.freedBytes)}.`;
      },
    });
  } catch (error) {
    fail(error);
  }
};

// --- details of one sandbox

let log = null, endTerminal = null;

function showDetails(s) {
  if (selected === s.id) return closeDetails();
  closeDetails();
  selected = s.id;
  byId("details-title").textContent = s.name;
  byId("details").hidden = false;
  updateFacts(s);
  for (const row of byId("list").children) updateRow(row, sandboxes.find(s => s.id === row.dataset.id));
  byId("details-title").focus();
  showEgress().catch(fail);
}

function closeDetails() {
  if (!selected) return;
  const id = selected, had = byId("details").contains(document.activeElement);
  selected = null;
  log?.close();
  log = null;
  endTerminal?.();
  byId("details").hidden = true;
  byId("facts").replaceChildren();
  byId("egress").replaceChildren();
  const opener = byId("list").querySelector(`[data-id="${CSS.escape(id)}"] .link`);
  opener?.setAttribute("aria-expanded", "false");
  if (had) (opener ?? byId("list-title")).focus();
}

function updateFacts(s) {
  const {settings} = s, minutes = ms => ms ? ms / 60000 + " min" : "none", details = usage.get(s.id)?.details;
  const facts = {
    ID: s.id, Status: s.status, Image: s.image || "–", "Network policy": details?.network ?? "–", Processes: details?.usage.processes ?? "–",
    Timeout: minutes(settings.timeoutMs), "Idle timeout": minutes(settings.idleTimeoutMs), Persistent: settings.persistent ? "yes" : "no",
    Command: settings.command?.join(" ") || "none", Ports: Object.entries(s.ports ?? {}).map(([port, at]) => `${port} at ${at}`).join(", ") || "none",
  };
  children(byId("facts"), Object.entries(facts), ([name]) => name, ([name]) => element("div", {}, element("dt", {}, name), element("dd")),
    (row, [, value]) => setText(row.lastChild, String(value)));
  byId("terminal-open").disabled = !runs(s);
  if (!log || log.readyState === EventSource.CLOSED && runs(s)) openLog(s);
}

const maxLog = 1000;

// openLog follows the log. A browser reconnects by itself, until the sandbox is stopped and there
// is nothing new; it is opened again when the sandbox runs again.
function openLog({id}) {
  const view = byId("log"), end = byId("log-end");
  view.replaceChildren();
  setText(end, "");
  const source = log = new EventSource(streamURL(path("sandboxes", id, "logs") + "?tail=200"));
  const line = ({type, data}) => {
    const follow = view.scrollTop + view.clientHeight >= view.scrollHeight - 4;
    view.append(element("div", {className: type}, plain(data)));
    if (view.children.length > maxLog) view.firstChild.remove();
    if (follow) view.scrollTop = view.scrollHeight;
  };
  source.onopen = () => setText(end, "");
  source.addEventListener("stdout", line);
  source.addEventListener("stderr", line);
  source.addEventListener("end", ({data}) => setText(end, "The session has ended: " + plain(data)));
  source.addEventListener("failed", ({data}) => setText(end, plain(data)));
}

byId("terminal-open").onclick = () => {
  const area = byId("terminal"), open = byId("terminal-open");
  if (endTerminal) return endTerminal();
  area.hidden = false;
  setText(open, "Close terminal");
  const end = openTerminal(selected, byId("screen"), byId("keys"), why => {
    const had = area.contains(document.activeElement);
    endTerminal = null;
    area.hidden = true;
    setText(open, "Open terminal");
    say(plain(why));
    if (had) open.focus();
  });
  endTerminal = end;
};

async function showEgress() {
  const id = selected, s = sandboxes.find(s => s.id === id);
  if (!id) return;
  const list = s?.status === "running" ? await call("GET", path("sandboxes", id, "egress")) : [];
  if (id !== selected) return;
  const key = e => [e.name, e.address, e.port, e.protocol, e.allowed, e.failure, e.rule].join(" ");
  rows(byId("egress"), list.toReversed(), key,
    e => element("tr", {}, element("th", {scope: "row"}, plain([e.name || e.address, e.port].filter(Boolean).join(":"))), cell("", plain(e.protocol)),
      element("td", {"data-status": e.allowed ? "allowed" : "blocked"}, plain([e.allowed ? "allowed" : "blocked", e.failure].filter(Boolean).join(", "))), cell("", plain(e.rule)), cell("count number"), cell("last")),
    (row, e) => {
      setText(part(row, "count"), String(e.count));
      setText(part(row, "last"), date(e.last));
    });
}

poll(4000, showEgress);
byId("close").onclick = closeDetails;
byId("create").onclick = () => create();
