// The terminal of a sandbox: a shell over a WebSocket.

import {path, streamURL} from "./api.js";
import {begin} from "./actions.js";
import {button, element, empty, setText} from "./dom.js";
import {printable} from "./format.js";
import {runs} from "./store.js";
import {View} from "./term-view.js";

const shell = ["sh", "-c", "command -v bash >/dev/null && exec bash; exec sh"];
const most = 1 << 16; // bytes in a message

let kept = null; // the terminal of the sandbox of which another tab is shown

// terminal shows the terminal of a sandbox, see detail.js. Its shell goes on while other tabs of the sandbox are shown.
export function terminal(node, s) {
  const mine = kept?.id === s.id ? kept : shellOf(s);
  if (mine === kept) kept = null;
  mine.show(node);
  return {
    update: mine.update,
    end() {
      leaveTerminal();
      mine.hide();
      kept = mine;
    },
  };
}

// leaveTerminal ends the shell that goes on, unless it is in the sandbox of this name.
export function leaveTerminal(name) {
  if (!kept || kept.name === name) return;
  kept.end();
  kept = null;
}

function shellOf(s) {
  const screen = element("div", {className: "term", id: "terminal"}), state = element("p", {id: "terminal-state", role: "status", className: "hint"});
  const again = button("New shell", () => open(true), {id: "terminal-again", hidden: true});
  const hint = element("p", {id: "terminal-hint", className: "hint"}, "Tab goes to the shell. To leave the terminal press Escape, then Tab. Shift+Page Up shows what has scrolled away.");
  const stopped = element("div");
  let socket = null, view = null, observer = null, running = null;

  function open(focus) {
    socket?.close();
    again.hidden = true;
    setText(state, "Connecting …");
    const decoder = new TextDecoder(), mine = new WebSocket(streamURL(path("sandboxes", s.id, "terminal"), "ws"));
    let why = "";
    socket = mine;
    mine.binaryType = "arraybuffer";
    view = new View(screen, s.name, text => {
      const bytes = new TextEncoder().encode(text);
      for (let at = 0; at < bytes.length && mine.readyState === WebSocket.OPEN; at += most) mine.send(bytes.slice(at, at + most));
    });
    mine.onopen = () => {
      mine.send(JSON.stringify({command: shell, env: {TERM: "xterm-256color", COLORTERM: "truecolor", LANG: "C.UTF-8"}, ...view.size}));
      setText(state, "");
      if (focus) view.focus();
    };
    mine.onmessage = ({data}) => {
      if (data instanceof ArrayBuffer) return view.write(decoder.decode(data, {stream: true}));
      const event = JSON.parse(data);
      if (event.event === "exit") why = `The shell has ended with code ${event.exitCode}.`;
      if (event.event === "failed") why = event.error.message;
    };
    mine.onclose = () => {
      if (socket !== mine) return;
      socket = null;
      setText(state, printable(why || "The connection has ended."));
      again.hidden = !running;
      if (screen.contains(document.activeElement)) (again.hidden ? document.querySelector("main h1") : again).focus();
      view.input.disabled = true;
    };
    observer?.disconnect();
    observer = new ResizeObserver(() => {
      if (view.fit() && mine.readyState === WebSocket.OPEN) mine.send(JSON.stringify(view.size));
    });
    observer.observe(screen);
  }

  const root = element("div", {}, screen, element("div", {className: "bar"}, hint, state, again), stopped);
  return {
    id: s.id, name: s.name,
    show(node) {
      node.append(root);
      if (view) view.text.scrollTop = view.text.scrollHeight;
      if (running && !socket) running = null; // its shell has ended meanwhile: update begins another one
    },
    hide() { root.remove(); },
    update(s) {
      if (running === runs(s)) return;
      running = runs(s);
      screen.hidden = hint.hidden = !running;
      stopped.replaceChildren(...(running ? [] : [empty("There is no session", `${s.name} is ${s.status}: a terminal needs a session.`, ...(s.status === "creating" ? [] : [button("Start " + s.name, () => begin(s), {className: "primary"})]))]));
      if (running) open(false);
      else again.hidden = true;
    },
    end() {
      observer?.disconnect();
      const last = socket;
      socket = null;
      last?.close();
    },
  };
}
