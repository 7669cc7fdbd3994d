// The form for a new sandbox, and for the settings of one that there is.

import {follow} from "./api.js";
import {act, titleOf} from "./actions.js";
import {fail} from "./dom.js";
import {count, duration, milliseconds, size} from "./format.js";
import {defaults} from "./store.js";

const policies = ["allow-all", "public-only", "deny-all"];
const lines = text => text.split("\n").map(line => line.trim()).filter(Boolean);

// pairs parses lines key=value. It returns null if one of them is not.
export function pairs(text) {
  const all = {};
  for (const line of lines(text)) {
    const at = line.indexOf("=");
    if (at < 1) return null;
    all[line.slice(0, at)] = line.slice(at + 1);
  }
  return all;
}

export const unpaired = (all = {}) => Object.entries(all).map(([key, value]) => `${key}=${value}`).join("\n");

// numbers parses ports. It returns null if one is none.
export function numbers(text) {
  const all = text.split(/[\s,]+/).filter(Boolean).map(Number);
  return all.every(n => Number.isInteger(n) && n > 0 && n < 65536) ? all : null;
}

// mounts parses lines volume:target[:mode].
function mounts(text) {
  const all = lines(text).map(line => /^([^:/]+):(\/[^:]*)(?::(ro|rw))?$/.exec(line));
  return all.every(Boolean) ? all.map(([, volume, target, mode]) => ({volume, target, ...(mode && {mode})})) : null;
}

export const shell = command => command ? ["sh", "-c", command] : null;

// changeable are the fields of settings that can be changed later, too. Their values are those of set.
export function changeable(standard, set = {}) {
  const time = ms => ms === undefined ? "" : ms === 0 ? "0" : duration(ms);
  return [
    {name: "command", label: "Main process", value: set.command ? set.command.length === 3 && set.command[1] === "-c" ? set.command[2] : set.command.join(" ") : "",
      placeholder: "none", hint: "A shell command that each session starts."},
    {name: "network", label: "Network policy", of: "network(?: policy)?|policy|allow|subnets", options: policies, value: set.network ?? "", placeholder: standard.settings.network, hint: "Or lists, such as allow=*.example.com,example.org"},
    {name: "vcpus", label: "CPUs", type: "number", min: 0.01, step: "any", value: set.vcpus ?? "", placeholder: String(standard.settings.vcpus)},
    {name: "memory", of: "memoryBytes", label: "Memory in MB", type: "number", min: 1, step: "any", value: set.memoryBytes ? set.memoryBytes / (1 << 20) : "",
      placeholder: String(standard.settings.memoryBytes / (1 << 20)), hint: set.memoryBytes ? "" : "Without a number as much for each CPU."},
    {name: "ports", of: "ports?", label: "Published ports", value: (set.ports ?? []).join(", "), placeholder: "none", hint: `Up to ${standard.maxPorts}, such as 3000, 8080`, advanced: !set.workdir},
    {name: "tags", of: "tags?", label: "Tags", type: "textarea", value: unpaired(set.tags), placeholder: "team=search", hint: "One key=value a line, up to 5.", advanced: !set.workdir},
    {name: "env", label: "Environment", type: "textarea", value: "", placeholder: "NAME=value", hint: set.workdir ? "Variables to add or to change, one NAME=value a line." : "One NAME=value a line. Values are not shown again.", advanced: true},
    {name: "timeout", of: "timeoutMs", label: "Timeout of a session", value: time(set.timeoutMs), placeholder: time(standard.settings.timeoutMs) || "none", hint: "Such as 90 min or 2 h; 0 is none.", advanced: true},
    {name: "idle", of: "idleTimeoutMs", label: "Idle timeout", value: time(set.idleTimeoutMs), placeholder: time(standard.settings.idleTimeoutMs) || "none", hint: "Ends a session that nobody uses.", advanced: true},
    {name: "grace", of: "stopTimeoutMs", label: "Time between SIGTERM and SIGKILL", value: time(set.stopTimeoutMs), placeholder: time(standard.settings.stopTimeoutMs), advanced: true},
    {name: "persistent", label: "Keep it when its session ends", type: "checkbox", checked: set.persistent ?? true, advanced: true},
  ];
}

// complaints are those about values that the server would not see as they were given.
export function complaints(v) {
  const all = {};
  if (pairs(v.tags) === null) all.tags = "Each line is a key, = and a value.";
  if (pairs(v.env) === null) all.env = "Each line is a name, = and a value.";
  if (numbers(v.ports) === null) all.ports = "Ports are numbers from 1 to 65535, separated by commas.";
  for (const name of ["timeout", "idle", "grace"]) if (Number.isNaN(milliseconds(v[name]))) all[name] = "A time is such as 90 s, 30 min or 2 h.";
  if (v.mounts !== undefined && mounts(v.mounts) === null) all.mounts = "Each line is a volume, : and a directory, and :ro if it may not be written.";
  return all;
}

// settingsOf returns the settings of the values that were given.
export function settingsOf(v) {
  const set = {}, give = (name, value) => { if (value !== null && value !== undefined && value !== "") set[name] = value; };
  give("command", shell(v.command));
  give("network", v.network);
  give("vcpus", v.vcpus);
  give("memoryBytes", v.memory === null ? null : Math.round(v.memory * (1 << 20)));
  if (v.ports) set.ports = numbers(v.ports);
  if (v.tags.trim()) set.tags = pairs(v.tags);
  if (v.env.trim()) set.env = pairs(v.env);
  give("timeoutMs", milliseconds(v.timeout));
  give("idleTimeoutMs", milliseconds(v.idle));
  give("stopTimeoutMs", milliseconds(v.grace));
  if (!v.persistent) set.persistent = false;
  return set;
}

function sourceOf(v) {
  if (v.source === "git") return {git: {url: v.address, ...(v.revision && {revision: v.revision})}};
  if (v.source === "tarball") return {tarball: {url: v.address, strip: 1}};
  return null;
}

// create asks for the settings of a new sandbox, which gets the files of a snapshot if from is one.
export async function create(from = null) {
  let standard;
  try {
    standard = await defaults();
  } catch (error) {
    return fail(error);
  }
  const runtimes = Object.keys(standard.runtimes).join(", ");
  return act({
    title: from ? "New sandbox from snapshot " + titleOf(from) : "New sandbox", verb: "Create",
    fields: [
      {name: "name", label: "Name", placeholder: "chosen for you", hint: "Lower-case letters, digits and hyphens."},
      ...(from ? [] : [{name: "image", of: "images?|runtime|reference", label: "Image or runtime", options: [...Object.keys(standard.runtimes), ...standard.images], placeholder: standard.settings.image,
        hint: "An image, which is pulled if the engine does not have it, or one of " + runtimes}]),
      ...changeable(standard),
      ...(from ? [] : [
        {name: "source", label: "First files", type: "select", choices: [["", "none"], ["git", "a Git repository"], ["tarball", "an archive"]], value: "", advanced: true},
        {name: "address", of: "git|tarball|url", label: "Address of these", placeholder: "https://example.com/project.git", advanced: true},
        {name: "revision", label: "Branch, tag or commit", placeholder: "the default branch", advanced: true},
        {name: "user", label: "User", placeholder: "that of the image", advanced: true},
        {name: "workdir", label: "Working directory", placeholder: standard.settings.workdir, advanced: true},
        {name: "gpus", label: "GPUs", placeholder: "none", hint: "all, or names such as 0 or nvidia.com/gpu=0.", advanced: true},
        {name: "pids", of: "pidsLimit", label: "Processes, at most", type: "number", min: 1, placeholder: String(standard.settings.pidsLimit), advanced: true},
        {name: "storage", of: "storageBytes", label: "Size of files outside of volumes, at most, in MB", type: "number", min: 1, placeholder: "no limit", advanced: true},
        {name: "oci", of: "ociRuntime", label: "OCI runtime", options: standard.ociRuntimes, placeholder: "that of the engine", advanced: true},
      ]),
      {name: "mounts", of: "mounts?|volume", label: "Volumes", type: "textarea", placeholder: "agent-sandbox-build:/data:ro", hint: "Volumes to attach, one a line.", advanced: true},
    ],
    check: v => ({...complaints(v), ...(v.source && !v.address && {address: "An address is needed."})}),
    plan: v => [
      v.name ? `A sandbox ${v.name}` : "A sandbox with a chosen name",
      v.persistent ? "It is kept until it is deleted" : "It is removed when its session ends",
      from ? `Files: those of the snapshot, ${size(from.sizeBytes)}` : `Image: ${standard.runtimes[v.image] ?? (v.image || standard.settings.image)}${hasImage(standard, v.image) ? "" : ", which is pulled first"}; a new volume for the workspace`,
      v.command ? `Main process: sh -c ${JSON.stringify(v.command)}` : from ? "Main process: that of the snapshot" : "No main process",
      `Network policy: ${v.network || standard.settings.network}`,
      `Limits: ${count(v.vcpus ?? standard.settings.vcpus, "CPU")}, ${v.memory ?? (v.vcpus ?? 1) * standard.settings.memoryBytes / (1 << 20)} MB of memory`,
    ],
    run: async (v, progress) => {
      const body = settingsOf(v), source = from ? {snapshot: from.id} : sourceOf(v);
      if (v.name) body.name = v.name;
      if (v.image) body[standard.runtimes[v.image] ? "runtime" : "image"] = v.image;
      if (source) body.source = source;
      if (v.mounts) body.mounts = mounts(v.mounts);
      if (v.user) body.user = v.user;
      if (v.workdir) body.workdir = v.workdir;
      if (v.oci) body.ociRuntime = v.oci;
      if (v.gpus) body.gpus = v.gpus.split(/[\s,]+/).filter(Boolean);
      if (v.pids) body.pidsLimit = v.pids;
      if (v.storage) body.storageBytes = Math.round(v.storage * (1 << 20));
      return `Created ${(await made(body, progress)).name}.`;
    },
  });
}

function hasImage(standard, given) {
  const image = standard.runtimes[given] ?? (given || standard.settings.image);
  return standard.images.includes(image) || standard.images.includes(image + ":latest");
}

const steps = {image: "Pulling the image", guest: "Installing the guest", container: "Creating the container", copy: "Copying files", source: "Getting the first files", commit: "Storing", start: "Starting"};

// made creates a sandbox and shows the steps.
async function made(body, progress) {
  const last = await follow("POST", "sandboxes", body, ({event, progress: p}) => {
    if (event !== "progress") return;
    const bytes = p.total ? `, ${size(p.current)} of ${size(p.total)}` : p.current ? `, ${size(p.current)}` : "";
    progress({text: `${steps[p.step] ?? p.step}${bytes} …`, current: p.current, total: p.total});
  });
  if (last?.event === "failed") throw Object.assign(new Error(last.error.message), {status: last.status, code: last.error.code});
  return last.sandbox;
}
