// What the server has: lists that follow the engine while the page is visible.

import {call} from "./api.js";

export const store = {
  sandboxes: [], tree: null, snapshots: [], volumes: null, health: null, defaults: null,
  loaded: false,
  gone: null, // since when the server does not answer
  usage: new Map(), // by ID: samples {at, cpu, memory, limit, processes, received, sent}, of the last ten minutes
};

const patience = 5000;

export const keep = 10 * 60 * 1000;

const listeners = new Set();
export const changed = () => { for (const listener of [...listeners]) listener(); };

// watch calls a listener after each change, until the returned function is called.
export function watch(listener) {
  listeners.add(listener);
  return () => listeners.delete(listener);
}

export const find = nameOrID => store.sandboxes.find(s => s.name === nameOrID) ?? store.sandboxes.find(s => s.id === nameOrID);
export const runs = s => s.status === "running" || s.status === "paused";
export const volumesOf = s => (store.volumes ?? []).filter(v => v.sandboxes?.includes(s.name));
export const last = id => store.usage.get(id)?.at(-1);

const pause = ms => new Promise(done => setTimeout(done, ms));
let unauthorized = () => {}, failing = null; // since when

// poll repeats a request while the page is visible and wanted, and on demand. An answer that comes after
// that of a later request is dropped.
function poll(every, work, wanted = () => true) {
  let asked = 0, shown = 0;
  const now = async () => {
    const mine = ++asked, show = await work();
    if (mine < shown) return;
    shown = mine;
    show();
    changed();
  };
  const repeat = async () => {
    for (let wait;; await pause(wait)) {
      wait = Math.min(every, 1000);
      if (document.hidden || !wanted()) continue;
      try {
        await now();
        wait = every;
      } catch (error) {
        wait = Math.min(every, 3000);
        if (error.status === 401) error.stale || await unauthorized();
      }
    }
  };
  return {now, repeat};
}

const sandboxes = poll(2000, async () => {
  try {
    const sandboxes = await call("GET", "sandboxes");
    return () => {
      failing = null;
      Object.assign(store, {sandboxes, loaded: true, gone: null, trouble: null});
      const there = new Set(sandboxes.filter(runs).map(s => s.id));
      for (const id of store.usage.keys()) if (!there.has(id)) store.usage.delete(id);
    };
  } catch (error) {
    if (error.status === 401) throw error;
    // A lost request says little: the next one may be answered.
    failing ??= Date.now();
    if (Date.now() - failing > patience || !store.loaded) {
      store.gone = failing;
      store.trouble = error.message;
      changed();
    }
    throw error;
  }
});

// The tree and the volumes are asked for once the overview is there: their requests would delay it.
const seen = () => store.loaded;
const flat = nodes => nodes.flatMap(n => [n, ...flat(n.children)]);

const tree = poll(2000, async () => {
  const tree = await call("GET", "snapshots/tree");
  return () => Object.assign(store, {tree, snapshots: flat(tree).filter(n => n.kind === "snapshot")});
}, seen);

const health = poll(15000, async () => {
  const got = await call("GET", "health");
  return () => { store.health = got; };
});

const usage = poll(3000, async () => {
  const all = await call("GET", "usage"), at = Date.now();
  return () => {
    for (const [id, u] of Object.entries(all)) {
      const samples = store.usage.get(id) ?? [];
      samples.push({at, cpu: u.cpuPercent, memory: u.memoryBytes, limit: u.memoryLimit, processes: u.processes, received: u.networkReceived, sent: u.networkSent});
      while (at - samples[0].at > keep) samples.shift();
      store.usage.set(id, samples);
    }
  };
}, () => store.sandboxes.some(runs));

// Seldom: for the sizes the engine starts a container that looks at all files.
const volumes = poll(60000, async () => {
  const got = await call("GET", "volumes");
  return () => { store.volumes = got; };
}, seen);

export const refresh = () => Promise.all([sandboxes.now(), tree.now()]);
export const refreshVolumes = () => volumes.now();

// defaults returns what the server creates without settings. They are asked for once.
let asked = null;
export function defaults() {
  return asked ??= call("GET", "defaults").then(got => store.defaults = got, error => {
    asked = null;
    throw error;
  });
}

// start begins to follow the engine. login is called when the server refuses the token.
export function start(login) {
  unauthorized = login;
  for (const each of [sandboxes, tree, health, usage, volumes]) each.repeat();
}
