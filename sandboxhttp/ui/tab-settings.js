// The settings of a sandbox, and what of them waits for the next session.

import {call, path} from "./api.js";
import {act} from "./actions.js";
import {changeable, complaints, settingsOf, shell} from "./create.js";
import {button, element, facts, fail} from "./dom.js";
import {duration, size} from "./format.js";
import {defaults} from "./store.js";

const names = {command: "main process", env: "environment", mounts: "mounts", ports: "ports", stopTimeout: "time between SIGTERM and SIGKILL", timeout: "timeout"};

export function settings(node, s) {
  const body = element("div"), pending = element("p", {className: "notice", role: "status", hidden: true});
  node.append(element("div", {className: "bar"}, button("Change settings …", change, {className: "primary"})), pending, body);
  let ended = false, seen = "";

  async function change() {
    let standard, got;
    try {
      [standard, got] = await Promise.all([defaults(), call("GET", path("sandboxes", s.id))]);
    } catch (error) {
      return fail(error);
    }
    const fields = changeable(standard, {...got.settings, network: got.network, tags: got.tags});
    const before = Object.fromEntries(fields.map(f => [f.name, f.type === "checkbox" ? f.checked : f.type === "number" ? (f.value === "" ? null : f.value) : f.value]));
    await act({
      title: "Settings of " + s.name, verb: "Save", fields, check: complaints,
      plan: v => changes(before, v).map(([name, text]) => `${fields.find(f => f.name === name).label}: ${text}`).concat(changes(before, v).length ? [] : ["Nothing changes"]),
      run: async v => {
        const body = bodyOf(before, v, got);
        if (Object.keys(body).length === 0) return "Nothing was changed.";
        const now = await call("PATCH", path("sandboxes", s.id), body);
        seen = "";
        await show();
        return `Changed the settings of ${s.name}.${now.pending?.length ? ` From the next session on: ${now.pending.map(p => names[p] ?? p).join(", ")}.` : ""}`;
      },
    });
  }

  async function show() {
    const got = await call("GET", path("sandboxes", s.id)).catch(() => null);
    if (ended || !got) return;
    const {settings: set} = got, none = "none";
    body.replaceChildren(facts([
      ["Image", got.image], ["Runtime", set.runtime ?? "–"], ["Main process", set.command?.join(" ") || none], ["Environment", got.env?.join(", ") || none],
      ["CPUs", set.vcpus === undefined ? "no limit" : String(set.vcpus)], ["Memory", set.memoryBytes ? size(set.memoryBytes) : "no limit"], ["Processes, at most", String(set.pidsLimit ?? "no limit")],
      ["Files outside of volumes", set.storageBytes ? size(set.storageBytes) : "no limit"], ["GPUs", set.gpus?.join(", ") || none], ["Network policy", got.network], ["Published ports", set.ports?.join(", ") || none],
      ["Tags", Object.entries(got.tags ?? {}).map(([k, v]) => `${k}=${v}`).join(", ") || none], ["Mounts", (set.mounts ?? []).map(m => `${m.target} (${m.mode})`).join(", ") || none],
      ["Timeout", duration(set.timeoutMs)], ["Idle timeout", duration(set.idleTimeoutMs)], ["Between SIGTERM and SIGKILL", duration(set.stopTimeoutMs)],
      ["Kept when its session ends", set.persistent ? "yes" : "no"], ["User", set.user ?? "that of the image"], ["Working directory", set.workdir], ["OCI runtime", set.ociRuntime ?? "that of the engine"],
      ["First files", got.source || none], ["Workspace", got.workspace.name + ", " + size(got.workspace.sizeBytes)], ["ID", got.id],
      ...(got.reason ? [["Why it does not run", got.reason]] : []),
    ]));
  }

  return {
    update(s) {
      const wait = s.pending ?? [];
      pending.hidden = wait.length === 0;
      if (wait.length) pending.textContent = "From the next session on: " + wait.map(p => names[p] ?? p).join(", ") + ".";
      const now = JSON.stringify([s.status, s.settings, s.tags, s.pending]);
      if (now === seen) return;
      seen = now;
      show();
    },
    end() { ended = true; },
  };
}

const shownValue = v => v === null || v === "" ? "the default" : v === true ? "yes" : v === false ? "no" : String(v).trim().replaceAll("\n", ", ");
const changes = (before, v) => Object.keys(before).filter(name => String(before[name] ?? "") !== String(v[name] ?? "")).map(name => [name, shownValue(v[name])]);

// bodyOf returns the request for what differs. What was emptied is taken away.
function bodyOf(before, v, got) {
  const changed = new Set(changes(before, v).map(([name]) => name)), all = settingsOf({...v, persistent: true}), body = {};
  const keys = {command: "command", network: "network", vcpus: "vcpus", memory: "memoryBytes", ports: "ports", tags: "tags", env: "env", timeout: "timeoutMs", idle: "idleTimeoutMs", grace: "stopTimeoutMs"};
  for (const [name, key] of Object.entries(keys)) if (changed.has(name) && all[key] !== undefined) body[key] = all[key];
  if (changed.has("command")) body.command = shell(v.command) ?? [];
  if (changed.has("ports")) body.ports = all.ports ?? [];
  if (changed.has("tags") && !v.tags.trim()) body.withoutTags = Object.keys(got.tags ?? {});
  if (changed.has("timeout") && v.timeout === "") body.timeoutMs = 0;
  if (changed.has("idle") && v.idle === "") body.idleTimeoutMs = 0;
  if (changed.has("persistent")) body.persistent = v.persistent;
  return body;
}
