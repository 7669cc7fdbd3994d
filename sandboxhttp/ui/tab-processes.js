// The detached commands of a sandbox, with their output.

import {act} from "./actions.js";
import {call, path} from "./api.js";
import {button, element, empty, fail, keyed, part, say, setText, showState, time} from "./dom.js";
import {duration, printable} from "./format.js";
import {menuButton} from "./menu.js";
import {last, runs} from "./store.js";
import {logView} from "./tab-log.js";

export function processes(node, s) {
  const input = element("input", {id: "command", "aria-label": "Command to run in the background", placeholder: "npm run build", autocomplete: "off", spellcheck: false});
  const form = element("form", {className: "bar row"}, input, element("button", {type: "submit", className: "primary"}, "Run in the background"));
  const list = element("ul", {className: "cards", id: "processes"}), nothing = element("div"), use = element("p", {className: "hint"});
  node.append(form, use, list, nothing);
  let ended = false, timer = null, running = false, source = null, shown = null;

  form.onsubmit = async event => {
    event.preventDefault();
    if (!input.value.trim()) return input.focus();
    try {
      await call("POST", path("sandboxes", s.id, "exec"), {command: ["sh", "-c", input.value], detached: true});
      say(`Started ${input.value}.`);
      input.value = "";
      await show();
    } catch (error) {
      fail(error);
    }
  };

  function output(row, p) {
    const view = part(row, "log"), open = shown !== p.id;
    source?.close();
    source = null;
    for (const other of list.children) part(other, "output").hidden = true;
    for (const b of list.querySelectorAll("button[aria-expanded]")) b.setAttribute("aria-expanded", "false");
    shown = open ? p.id : null;
    if (!open) return;
    part(row, "output").hidden = false;
    row.querySelector("button").setAttribute("aria-expanded", "true");
    source = logView(view, part(row, "hint"), s.id, `?tail=500&command=${encodeURIComponent(p.id)}`);
  }

  const text = p => printable(p.args?.length === 3 && p.args[1] === "-c" ? p.args[2] : (p.args ?? [p.path]).join(" "));

  async function signal(p, name) {
    try {
      await call("POST", path("sandboxes", s.id, "processes", p.id, "signal"), name ? {signal: name} : {});
      say(name ? `Sent SIG${name} to ${text(p)}.` : `Killed ${text(p)}.`);
      await show();
    } catch (error) {
      fail(error);
    }
  }

  const signals = p => [
    {label: "Interrupt (SIGINT)", act: () => signal(p, "INT")}, {label: "Terminate (SIGTERM)", act: () => signal(p, "TERM")},
    {label: "Kill …", danger: true, act: () => act({title: "Kill " + text(p), verb: "Kill", danger: true, plan: () => ["The command ends at once, with all processes that it started"], run: () => signal(p)})},
  ];

  function make(p) {
    const row = element("li", {className: "card"}, element("div", {className: "bar"}, element("code", {className: "command"}), element("span", {className: "how"}), button("Output", () => output(row, p), {"aria-expanded": "false"}), menuButton(text(p), () => signals(p))),
      element("p", {className: "when hint"}, `${p.user ? p.user + " · " : ""}started `, time(p.startedAt), element("span")),
      element("div", {className: "output", hidden: true}, element("div", {className: "log small", role: "log", "aria-label": "Output", tabIndex: 0}), element("p", {className: "hint"})));
    return row;
  }

  function update(row, p) {
    setText(part(row, "command"), text(p));
    part(row, "menu-button").hidden = !p.running;
    showState(part(row, "how"), p.running ? "running" : p.timedOut ? "timed out" : p.outOfMemory ? "out of memory" : p.signal ? `ended by signal ${p.signal}` : p.exitCode === 0 ? "done" : `failed with code ${p.exitCode}`);
    if (!p.running && p.endedAt) setText(part(row, "when").lastChild, `, took ${duration(new Date(p.endedAt) - new Date(p.startedAt))}`);
  }

  async function show() {
    const all = await call("GET", path("sandboxes", s.id, "processes"));
    if (ended) return;
    keyed(list, all.toReversed(), p => p.id, make, update);
    nothing.replaceChildren(...(all.length ? [] : [empty("No commands run in the background", running ? "Start one above, or with exec and detached over HTTP." : "Start the session to run some.")]));
  }

  async function follow() {
    while (!ended) {
      if (!document.hidden) await show().catch(() => {});
      await new Promise(done => { timer = setTimeout(done, 3000); });
    }
  }

  follow();
  return {
    update(s) {
      running = runs(s);
      const n = last(s.id)?.processes;
      setText(use, n === undefined ? "" : `The session has ${n} processes and threads, including its own.`);
      for (const control of form.elements) control.disabled = !running;
    },
    end() {
      ended = true;
      clearTimeout(timer);
      source?.close();
    },
  };
}
