// The log of a sandbox, which follows what its main process writes.

import {path, streamURL} from "./api.js";
import {element, setText} from "./dom.js";
import {printable} from "./format.js";
import {runs} from "./store.js";

const maxLines = 2000;

// logView shows a log in a node, and returns what ends it.
export function logView(view, end, id, query) {
  view.replaceChildren();
  const source = new EventSource(streamURL(path("sandboxes", id, "logs") + query));
  const line = ({type, data}) => {
    const follow = view.scrollTop + view.clientHeight >= view.scrollHeight - 4;
    view.append(element("div", {className: type}, printable(data)));
    if (view.children.length > maxLines) view.firstChild.remove();
    if (follow) view.scrollTop = view.scrollHeight;
    setText(end, "");
  };
  source.onopen = () => { if (!view.firstChild) setText(end, "Nothing was written yet."); };
  source.addEventListener("stdout", line);
  source.addEventListener("stderr", line);
  source.addEventListener("end", ({data}) => setText(end, "It has ended: " + printable(data)));
  source.addEventListener("failed", ({data}) => setText(end, printable(data)));
  return source;
}

export function log(node, {id}) {
  const view = element("div", {id: "log", className: "log", role: "log", "aria-label": "Log", tabIndex: 0}), end = element("p", {id: "log-end", className: "hint"}, "Loading …");
  node.append(view, end);
  let source = null, running = null;
  return {
    // A browser reconnects by itself, until the sandbox is stopped and there is nothing new; it is opened
    // again when the sandbox runs again.
    update(s) {
      const started = runs(s) && running === false;
      running = runs(s);
      if (source && !started) {
        if (!running && source.readyState === EventSource.CLOSED && !view.firstChild && end.textContent === "Loading …") setText(end, "The main process has written nothing. Start the session with a main process to see its output here.");
        return;
      }
      source?.close();
      source = logView(view, end, id, "?tail=500");
    },
    end() { source?.close(); },
  };
}
