// The page: which view an address shows, what is known of the server, and the token.

import {call, setToken} from "./api.js";
import {create} from "./create.js";
import {detail} from "./detail.js";
import {ask} from "./dialog.js";
import {byId, setText} from "./dom.js";
import {clock, count} from "./format.js";
import {overview} from "./overview.js";
import {refresh, refreshVolumes, start, store, watch} from "./store.js";
import {leaveTerminal} from "./tab-terminal.js";
import {tree} from "./tree.js";
import {volumes} from "./volumes.js";

const view = byId("view");
let end = null, shown = null, focused = null;

// route shows the view of the address.
function route() {
  if (location.hash && !location.hash.startsWith("#/")) return; // of the link that skips the header
  const parts = location.hash.slice(2).split("/").map(decode);
  const [first = "", ...rest] = parts, moved = shown !== null && shown !== location.hash;
  shown = location.hash;
  end?.();
  leaveTerminal(first === "sandboxes" ? rest[0] : "");
  if (byId("menu").matches(":popover-open")) byId("menu").hidePopover();
  view.replaceChildren();
  view.dataset.view = first || "overview";
  end = first === "sandboxes" && rest[0] ? detail(view, rest) : first === "tree" ? tree(view) : first === "volumes" ? volumes(view) : overview(view);
  const at = {tree: "#/tree", volumes: "#/volumes"}[first] ?? "#/";
  for (const a of byId("views").querySelectorAll("a")) a.getAttribute("href") === at ? a.setAttribute("aria-current", "page") : a.removeAttribute("aria-current");
  document.title = [rest[0], "Sandboxes"].filter(Boolean).join(" · ");
  if (moved) {
    const tab = first === "sandboxes" && view.querySelector(".tabs [aria-current]");
    (tab || view.querySelector("h1"))?.focus();
  }
  view.dataset.address = location.hash;
}

function decode(text) {
  try {
    return decodeURIComponent(text);
  } catch {
    return text;
  }
}

// showServer shows what is known of the engine, and whether the server answers.
function showServer() {
  const {gone, trouble, health, loaded} = store, banner = byId("gone");
  byId("create").disabled = !loaded || Boolean(gone);
  document.body.classList.toggle("lost", Boolean(gone));
  if (view.inert !== Boolean(gone)) {
    if (gone && view.contains(document.activeElement)) focused = document.activeElement;
    view.inert = Boolean(gone);
    if (!gone && document.activeElement === document.body) focused?.focus(); // what had it before
  }
  banner.hidden = !gone;
  if (gone) setText(banner, `Disconnected since ${clock(gone)}: ${trouble} Retrying …`);
  if (health) setText(byId("engine"), health.healthy ? `Engine ${health.version} on ${health.host}, ${count(store.sandboxes.length, "sandbox", "sandboxes")}` : `The engine is not healthy. ${health.guidance ?? ""}`);
  else if (loaded) setText(byId("engine"), count(store.sandboxes.length, "sandbox", "sandboxes"));
}

let login = null;
const askToken = () => login ??= ask({
  title: "Token", verb: "Continue", text: "The server printed it when it was started.", fields: [{name: "token", label: "Token", type: "password", required: true}],
  run: async ({token}) => {
    setToken(token);
    await call("GET", "health");
    await Promise.all([refresh(), refreshVolumes()]);
  },
}).finally(() => { login = null; });

byId("create").onclick = () => create();
byId("skip").onclick = event => {
  event.preventDefault();
  view.querySelector("h1")?.focus();
};
addEventListener("hashchange", route);
watch(showServer);
route();
start(askToken);
document.body.classList.add("ready");
