// The actions on sandboxes, snapshots and volumes: each shows its plan, is confirmed, and says what was done.

import {call, path} from "./api.js";
import {ask} from "./dialog.js";
import {fail, say} from "./dom.js";
import {count, duration, size} from "./format.js";
import {refresh, refreshVolumes, runs, store, volumesOf} from "./store.js";

// act shows the plan of an action and does it: run returns what to say then. It returns whether it was done.
export async function act(options) {
  say("");
  let done = "";
  const run = async (values, progress) => { done = await options.run(values, progress); };
  if (!await ask({late: fail, ...options, run})) return false;
  say(done);
  await Promise.all([refresh(), refreshVolumes()]).catch(() => {});
  return true;
}

export const titleOf = n => n.name || n.id;

// actionsOf are the entries of a sandbox's menu.
export function actionsOf(s) {
  return [
    {label: "Open", act: () => { location.hash = "#/sandboxes/" + path(s.name); }},
    ...(s.status === "creating" || s.status === "unreachable" ? [] : [
      runs(s) ? {label: "Stop …", act: () => stop([s])} : {label: "Start", act: () => begin(s)},
      {label: "Fork …", act: () => fork(s)}, {label: "Take snapshot …", act: () => snapshot(s)},
      {label: "Change settings", act: () => { location.hash = "#/sandboxes/" + path(s.name, "settings"); }},
    ]),
    {label: "Delete …", act: () => remove([s]), danger: true},
  ];
}

export async function begin(s) {
  try {
    say(`Starting ${s.name} …`);
    await call("POST", path("sandboxes", s.id, "start"));
    say(`Started ${s.name}.`);
    await refresh();
  } catch (error) {
    fail(error);
  }
}

// each does something with several sandboxes, one after the other, and goes on when one of them fails.
async function each(all, work, progress) {
  const problems = [];
  for (const [i, s] of all.entries()) {
    if (all.length > 1) progress({text: `${s.name}, ${i + 1} of ${all.length} …`, current: i, total: all.length});
    await work(s).catch(error => problems.push(all.length > 1 ? `${s.name}: ${error.message}` : error));
  }
  if (problems.length) throw problems[0] instanceof Error ? problems[0] : new Error(problems.join("\n"));
}

const few = all => all.length === 1 ? all[0].name : count(all.length, "sandbox", "sandboxes");

export function stop(all) {
  const some = all.filter(runs), losing = some.filter(s => !s.settings.persistent);
  return act({
    title: "Stop " + few(some), verb: "Stop",
    plan: () => [
      ...(some.length > 1 ? [some.map(s => s.name).join(", ")] : []),
      `Processes get SIGTERM, and SIGKILL after ${duration(Math.max(...some.map(s => s.settings.stopTimeoutMs)))}`,
      ...(losing.length < some.length ? ["Files are kept"] : []),
      ...losing.map(s => `${s.name} is not persistent: it may be removed with its files once its session has ended`),
    ],
    run: async (_, progress) => {
      await each(some, s => call("POST", path("sandboxes", s.id, "stop"), {}), progress);
      return `Stopped ${few(some)}.`;
    },
  });
}

export function remove(all) {
  const own = store.snapshots.filter(n => all.some(s => s.id === n.sandboxId));
  return act({
    title: "Delete " + few(all), verb: "Delete", danger: true,
    fields: [
      {name: "volumes", label: "Delete volumes, too", type: "checkbox"},
      ...(own.length ? [{name: "snapshots", label: "Delete snapshots, too", type: "checkbox"}] : []),
    ],
    plan: v => [
      ...all.map(s => `Sandbox ${s.name} is deleted, with its files outside of volumes${runs(s) ? "; its session ends" : ""}`),
      ...all.flatMap(volumesOf).map(volume => `Volume ${volume.name}, ${size(volume.sizeBytes)}: ${v.volumes ? "deleted, unless another sandbox uses it" : "kept"}`),
      ...own.map(n => `Snapshot ${titleOf(n)}, ${size(n.sizeBytes)}: ${v.snapshots ? "deleted" : "kept"}`),
    ],
    run: async (v, progress) => {
      const outcomes = [];
      await each(all, async s => {
        const report = await call("DELETE", path("sandboxes", s.id) + `?preserveVolume=${!v.volumes}&snapshots=${Boolean(v.snapshots)}`);
        outcomes.push(...report.volumes);
      }, progress);
      return `Deleted ${few(all)}. ${outcomes.map(o => `Volume ${o.name}: ${o.status}.`).join(" ")}`;
    },
  });
}

export function fork(s) {
  return act({
    title: "Fork " + s.name, verb: "Fork",
    fields: [
      {name: "count", label: "Number of forks", type: "number", value: 1, min: 1, max: 100, required: true},
      {name: "name", label: "Name", placeholder: "chosen for you", hint: "Several forks get a number behind it."},
    ],
    plan: v => [
      `${v.count === 1 ? "A new sandbox" : (v.count ?? "?") + " new sandboxes"} with the settings and all files of ${s.name}`,
      ...volumesOf(s).map(volume => `Copy of volume ${volume.name}, ${size(volume.sizeBytes)}`),
      ...(runs(s) ? [`The processes of ${s.name} are stopped while the files are copied, and continue then`] : []),
    ],
    run: async v => {
      const made = [await call("POST", path("sandboxes", s.id, "fork"), {...(v.name && {name: v.name}), ...(v.count !== 1 && {count: v.count})})].flat();
      return `Created ${made.map(f => f.name).join(", ")}.`;
    },
  });
}

export function snapshot(s) {
  return act({
    title: "Snapshot of " + s.name, verb: "Take snapshot", fields: [{name: "name", label: "Name", placeholder: "optional"}],
    plan: () => [`Copy of all files of ${s.name}`, ...volumesOf(s).map(volume => `Volume ${volume.name}, ${size(volume.sizeBytes)}`)],
    run: async v => {
      const made = await call("POST", path("sandboxes", s.id, "snapshots"), v.name ? {name: v.name} : {});
      return `Took snapshot ${titleOf(made)} of ${s.name}.`;
    },
  });
}

export function rollback(s, n) {
  return act({
    title: `Roll back ${s.name} to ${titleOf(n)}`, verb: "Roll back", danger: true,
    plan: () => [
      `The files of ${s.name} become those of the snapshot, ${size(n.sizeBytes)}`, "Files that were changed or made since then are lost: take a snapshot first to keep them",
      ...(runs(s) ? ["Its session ends, and a new one begins"] : []),
    ],
    run: async () => {
      await call("POST", path("sandboxes", s.id, "rollback"), {snapshot: n.id});
      return `Rolled ${s.name} back to ${titleOf(n)}.`;
    },
  });
}

export function removeSnapshot(n) {
  return act({
    title: "Delete snapshot " + titleOf(n), verb: "Delete", danger: true,
    plan: () => [`Snapshot ${titleOf(n)} of ${n.sandbox}, ${size(n.sizeBytes)}, is deleted`, "Sandboxes that were created from it remain"],
    run: () => call("DELETE", path("snapshots", n.id)).then(() => `Deleted snapshot ${titleOf(n)}.`),
  });
}

export function removeVolume(v) {
  return act({
    title: "Delete volume", verb: "Delete", danger: true, plan: () => [`Volume ${v.name}, ${size(v.sizeBytes)}, is deleted with its files`],
    run: () => call("DELETE", path("volumes", v.name)).then(() => `Deleted volume ${v.name}.`),
  });
}

export async function cleanup() {
  try {
    const plan = await call("POST", "volumes/cleanup", {dryRun: true}), names = plan.removed ?? [];
    await act({
      title: "Delete orphaned volumes", verb: "Delete", danger: true,
      plan: () => [`${count(names.length, "volume")} that no sandbox uses: deleted, which frees ${size(plan.freedBytes)}`, ...names.map(name => `Volume ${name}`)],
      run: async () => {
        const done = await call("POST", "volumes/cleanup", {names});
        return `Deleted ${count(done.removed?.length ?? 0, "volume")}, which freed ${size(done.freedBytes)}.`;
      },
    });
  } catch (error) {
    fail(error);
  }
}
