// What a sandbox uses: charts of ten minutes.

import {chart} from "./chart.js";
import {element, empty} from "./dom.js";
import {percent, size} from "./format.js";
import {runs, store} from "./store.js";

// rate returns the bytes of a second before each sample.
function rates(samples, value) {
  const all = new Map();
  samples.forEach((s, i) => {
    const before = samples[i - 1];
    all.set(s, before ? Math.max(0, 1000 * (value(s) - value(before)) / (s.at - before.at)) : 0);
  });
  return s => all.get(s);
}

export function usage(node) {
  const cpu = chart("CPU", percent), memory = chart("Memory", size), net = chart("Network", n => size(n) + "/s"), tasks = chart("Processes and threads", n => String(Math.round(n)));
  const charts = element("div", {className: "charts"}, cpu.node, memory.node, net.node, tasks.node), nothing = element("div");
  node.append(charts, nothing);
  return {
    update(s) {
      const samples = store.usage.get(s.id) ?? [], any = runs(s);
      charts.hidden = !any;
      nothing.replaceChildren(...(any ? [] : [empty("Nothing runs", "The charts begin with the next session, and show ten minutes.")]));
      cpu.update(samples, [{value: u => u.cpu}], 100);
      memory.update(samples, [{value: u => u.memory}], samples.at(-1)?.limit);
      net.update(samples, [{name: "in", value: rates(samples, u => u.received)}, {name: "out", value: rates(samples, u => u.sent)}], 1024);
      tasks.update(samples, [{value: u => u.processes}], 10);
    },
    end() {},
  };
}
