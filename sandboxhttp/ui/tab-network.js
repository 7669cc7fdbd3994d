// The network of a sandbox: its policy, whether that allows something, and what was tried.

import {call, path} from "./api.js";
import {element, empty, fail, keyed, part, say, setText, time} from "./dom.js";
import {printable} from "./format.js";
import {runs} from "./store.js";

const policies = ["allow-all", "public-only", "deny-all"];

export function network(node, s) {
  const policy = element("input", {id: "policy", list: "policies", autocomplete: "off", spellcheck: false, "aria-label": "Network policy", "aria-describedby": "policy-hint policy-problem"});
  const problem = element("p", {id: "policy-problem", className: "problem", role: "alert"});
  const hint = element("p", {id: "policy-hint", className: "hint"}, "allow-all, public-only, deny-all, or lists such as allow=*.example.com subnets.allow=10.1.0.0/16. A change applies at once.");
  const change = element("form", {}, element("div", {className: "bar row"}, policy, element("button", {type: "submit", className: "primary"}, "Apply")),
    element("datalist", {id: "policies"}, ...policies.map(value => element("option", {value}))), hint, problem);
  const host = element("input", {id: "host", "aria-label": "Host", placeholder: "registry.npmjs.org", autocomplete: "off", spellcheck: false}), port = element("input", {id: "port", "aria-label": "Port", type: "number", min: 1, max: 65535, value: 443});
  const verdict = element("p", {id: "verdict", role: "status"});
  const check = element("form", {}, element("div", {className: "bar row"}, host, port, element("button", {type: "submit"}, "Check")), verdict);
  const body = element("tbody", {id: "egress"}), nothing = element("div");
  const table = element("table", {"aria-labelledby": "egress-title"}, element("thead", {}, element("tr", {}, ...["Destination", "Protocol", "Decision", "Rule", "Count", "Last"].map(text => element("th", {scope: "col"}, text)))), body);
  node.append(element("section", {className: "panel"}, element("h2", {}, "Policy in force"), change), element("section", {className: "panel"}, element("h2", {}, "Would this be allowed?"), check),
    element("section", {}, element("h2", {id: "egress-title"}, "What was tried"), element("div", {className: "wide", role: "region", "aria-labelledby": "egress-title", tabIndex: 0}, table), nothing));
  let ended = false, timer = null, now = s, shownPolicy = null;

  change.onsubmit = async event => {
    event.preventDefault();
    setText(problem, "");
    try {
      const got = await call("PATCH", path("sandboxes", s.id), {network: policy.value.trim()});
      shownPolicy = policy.value = got.network;
      say(`The policy of ${s.name} is ${got.network}.`);
    } catch (error) {
      if (error.status !== 400) return fail(error);
      setText(problem, error.message);
      policy.focus();
    }
  };
  check.onsubmit = async event => {
    event.preventDefault();
    verdict.className = "";
    try {
      const got = await call("GET", path("sandboxes", s.id, "network", "check") + "?" + new URLSearchParams({host: host.value.trim(), port: port.value}));
      verdict.className = got.allowed ? "good" : "bad";
      setText(verdict, `${host.value.trim()}:${port.value} is ${got.allowed ? "allowed" : "blocked"} by the rule “${got.rule}”.`);
    } catch (error) {
      setText(verdict, error.message);
    }
  };

  const id = e => [e.name, e.address, e.port, e.protocol, e.allowed, e.failure, e.rule].join(" ");
  const make = e => element("tr", {}, element("th", {scope: "row"}, printable([e.name || e.address, e.port].filter(Boolean).join(":"))), element("td", {}, printable(e.protocol)),
    element("td", {}, element("span", {className: "badge " + (e.allowed ? "good" : "bad")}, printable([e.allowed ? "allowed" : "blocked", e.failure].filter(Boolean).join(", ")))),
    element("td", {}, printable(e.rule)), element("td", {className: "count"}), element("td", {className: "last"}));
  const update = (row, e) => {
    setText(part(row, "count"), String(e.count));
    const last = part(row, "last");
    if (last.firstChild?.dateTime !== e.last) last.replaceChildren(time(e.last));
  };

  async function show() {
    if (shownPolicy === null) {
      const got = await call("GET", path("sandboxes", s.id));
      if (ended) return;
      shownPolicy = got.network;
      if (!policy.value) policy.value = got.network;
    }
    const all = now.status === "running" ? await call("GET", path("sandboxes", s.id, "egress")) : [];
    if (ended) return;
    keyed(body, all.toReversed(), id, make, update);
    table.hidden = all.length === 0;
    nothing.replaceChildren(...(all.length ? [] : [runs(now) ? empty("Nothing was tried in this session", "Connections and names that programs inside ask for appear here, allowed or blocked.") : empty("There is no session", "What a session tried is forgotten with it.")]));
  }

  async function follow() {
    while (!ended) {
      if (!document.hidden) await show().catch(() => {});
      await new Promise(done => { timer = setTimeout(done, 3000); });
    }
  }

  follow();
  return {
    update(s) { now = s; },
    end() {
      ended = true;
      clearTimeout(timer);
    },
  };
}
