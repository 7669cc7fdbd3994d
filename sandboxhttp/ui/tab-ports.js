// The web servers in a sandbox: its published ports, and previews of others.

import {path, previewURL} from "./api.js";
import {button, element, empty, fail, keyed, link, part, setText} from "./dom.js";
import {defaults, runs} from "./store.js";

export function ports(node, s) {
  const list = element("ul", {className: "cards", id: "ports"}), nothing = element("div"), preview = element("section", {className: "panel", hidden: true});
  const port = element("input", {id: "preview-port", type: "number", min: 1, max: 65535, value: 3000, "aria-label": "Port inside", required: true});
  const open = element("form", {className: "bar row"}, port, element("button", {type: "submit", className: "primary"}, "Open preview"));
  const text = element("p", {className: "hint"});
  preview.append(element("h2", {}, "Preview of a server inside"), open, text);
  node.append(preview, element("h2", {}, "Published ports"), list, nothing);
  let domain = null;

  const show = n => { window.open(previewURL(n, s.name, domain), "_blank", "noopener"); };
  open.onsubmit = event => {
    event.preventDefault();
    show(port.value);
  };
  defaults().then(got => {
    domain = got.previewDomain ?? null;
    preview.hidden = !domain;
    setText(text, `Any port, published or not: http://${port.value}-${s.name}.${domain}. Only browsers that have opened it here see it.`);
  }, fail);

  const make = ([n]) => element("li", {className: "card"}, element("div", {className: "bar"}, element("strong", {}, "Port " + n), element("span", {className: "at hint"}),
    element("span", {className: "go"}), ...(domain ? [button("Open preview", () => show(n), {"aria-label": "Open preview of port " + n})] : [])));
  return {
    update(s) {
      const at = s.ports ?? {}, all = [...new Set([...(s.settings.ports ?? []).map(String), ...Object.keys(at)])];
      keyed(list, all.map(n => [n, at[n]]), ([n]) => n, make, (row, [n, address]) => {
        setText(part(row, "at"), address ? "at " + address + " of the engine's machine" : runs(s) ? "from the next session on" : "while a session runs");
        const go = part(row, "go");
        if (address && s.location === "local") { if (!go.firstChild || go.firstChild.host !== address) go.replaceChildren(link("Open", `http://${address}/`, {target: "_blank", rel: "noopener noreferrer"})); } else go.replaceChildren();
      });
      if (all.length === 0) { if (!nothing.firstChild) nothing.append(empty("No ports are published", "Publish some under Settings, to reach servers inside from the engine's machine.", link("Settings", "#/sandboxes/" + path(s.name, "settings")))); } else nothing.replaceChildren();
    },
    end() {},
  };
}
