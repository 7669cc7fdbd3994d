// Charts of what a sandbox uses.

import {element, setAttribute, setText, shape} from "./dom.js";
import {keep, store} from "./store.js";

const short = 2 * 60 * 1000;

// points are the corners of a line through values over a time, in a box of that size.
function points(samples, value, span, width, height, top) {
  const now = samples.at(-1)?.at ?? 0;
  return samples.filter(s => now - s.at <= span).map(s =>
    `${(width - width * (now - s.at) / span).toFixed(1)},${(height - 1 - (height - 2) * Math.min(1, value(s) / top)).toFixed(1)}`);
}

// spark shows the last of some samples as text, and those of the last two minutes as a line. Its top is the highest of
// them, but at least a tenth of the most that there can be.
export function spark(node, id, value, format, most) {
  if (!node.firstChild) {
    const svg = shape("svg", {viewBox: "0 0 80 20", preserveAspectRatio: "none", "aria-hidden": "true", class: "spark"}, shape("polyline"));
    node.append(element("span", {className: "value"}), svg);
  }
  const samples = store.usage.get(id) ?? [];
  const top = Math.max((most || 1) / 10, ...samples.map(u => 1.25 * value(u)));
  setAttribute(node.querySelector("polyline"), "points", points(samples, value, short, 80, 20, top).join(" "));
  setText(node.firstChild, samples.length ? format(value(samples.at(-1))) : "–");
}

// chart makes a chart of ten minutes. Its update takes the lines, each {name, value}, and the value of a full chart.
export function chart(title, format) {
  const lines = shape("g"), now = element("span", {className: "value"}), high = element("span", {className: "axis"});
  const picture = shape("svg", {viewBox: "0 0 300 80", preserveAspectRatio: "none", "aria-hidden": "true"},
    ...[20, 40, 60].map(y => shape("line", {x1: 0, x2: 300, y1: y, y2: y, class: "grid"})), lines);
  const node = element("figure", {className: "chart"}, element("figcaption", {}, element("span", {}, title), now), element("div", {className: "plot"}, high, picture),
    element("div", {className: "axis times", "aria-hidden": "true"}, element("span", {}, "10 min ago"), element("span", {}, "now")));
  return {
    node,
    update(samples, each, most) {
      const top = Math.max(most || 0, ...each.flatMap(({value}) => samples.map(value))) || 1;
      setText(high, format(top));
      setText(now, samples.length ? each.map(({name, value}) => (name ? name + " " : "") + format(value(samples.at(-1)))).join(", ") : "–");
      while (lines.children.length < 2 * each.length) lines.append(shape("polygon"), shape("polyline"));
      each.forEach(({value}, i) => {
        const line = points(samples, value, keep, 300, 80, top), [area, stroke] = [lines.children[2 * i], lines.children[2 * i + 1]];
        setAttribute(stroke, "points", line.join(" "));
        setAttribute(area, "points", line.length ? `${line[0].split(",")[0]},80 ${line.join(" ")} 300,80` : "");
      });
    },
  };
}
