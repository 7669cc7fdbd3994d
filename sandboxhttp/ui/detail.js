// One sandbox: what it is, its actions, and a part of the page for each of its subjects.

import {path} from "./api.js";
import {actionsOf, begin, stop} from "./actions.js";
import {button, element, empty, link, setAttribute, setText, showState, time} from "./dom.js";
import {menuButton} from "./menu.js";
import {find, runs, store, watch} from "./store.js";
import {files} from "./tab-files.js";
import {log} from "./tab-log.js";
import {network} from "./tab-network.js";
import {ports} from "./tab-ports.js";
import {processes} from "./tab-processes.js";
import {settings} from "./tab-settings.js";
import {snapshots} from "./tab-snapshots.js";
import {terminal} from "./tab-terminal.js";
import {usage} from "./tab-usage.js";

// A tab shows its part of a sandbox in a node: (node, sandbox, rest of the address) => {update(sandbox), end()}.
const tabs = {terminal, usage, log, files, processes, network, snapshots, ports, settings};

// detail shows a sandbox in a node, until the returned function is called.
export function detail(node, [name, which = "terminal", ...rest]) {
  const make = tabs[which] ?? terminal;
  let tab = null, shownID = null;
  const title = element("h1", {tabIndex: -1}, name), status = element("span", {id: "detail-status"}), meta = element("p", {className: "meta hint"});
  const session = button("", () => { const s = find(name); if (runs(s)) stop([s]); else begin(s); }, {className: "primary", id: "session"});
  const actions = element("div", {className: "bar"}, session, menuButton(name, () => { const s = find(name); return s ? actionsOf(s).slice(1).filter(a => !/^(Start|Stop)/.test(a.label)) : []; }));
  const nav = element("nav", {className: "tabs", "aria-label": "Parts of " + name}, ...Object.keys(tabs).map(tab =>
    link(tab[0].toUpperCase() + tab.slice(1), "#/sandboxes/" + path(name, tab), tab === which ? {"aria-current": "page"} : {})));
  const body = element("section", {id: "tab", "aria-label": which[0].toUpperCase() + which.slice(1) + " of " + name});
  const head = element("div", {className: "detail-head"}, element("div", {}, element("div", {className: "bar"}, title, status), meta), actions);
  node.replaceChildren(element("nav", {className: "crumbs", "aria-label": "Where this is"}, link("Sandboxes", "#/")), head, nav, body);
  nav.querySelector("[aria-current]")?.scrollIntoView({block: "nearest", inline: "nearest"});

  function update() {
    if (!store.loaded) return;
    const s = find(name);
    head.hidden = nav.hidden = !s;
    if (!s) {
      if (shownID !== "none") {
        tab?.end();
        tab = null;
        shownID = "none";
        body.replaceChildren(element("h1", {tabIndex: -1}, name), empty("There is no sandbox " + name, "It was deleted, or never existed.", link("All sandboxes", "#/")));
      }
      return;
    }
    showState(status, s.status);
    setText(session, runs(s) ? "Stop …" : "Start");
    session.classList.toggle("primary", !runs(s));
    session.disabled = s.status === "creating" || s.status === "unreachable";
    if (meta.dataset.id !== s.id + s.image) {
      meta.dataset.id = s.id + s.image;
      meta.replaceChildren(`${s.image} · created `, time(s.createdAt), ...(s.id === s.name ? [] : [` · ID ${s.id}`]), ...(s.location === "local" ? [] : [` · on ${s.location}`]));
    }
    setAttribute(body, "data-status", s.status);
    if (shownID !== s.id) {
      tab?.end();
      shownID = s.id;
      body.replaceChildren();
      tab = make(body, s, rest);
    }
    tab?.update(s);
  }

  update();
  const unwatch = watch(update);
  return () => {
    unwatch();
    tab?.end();
  };
}
