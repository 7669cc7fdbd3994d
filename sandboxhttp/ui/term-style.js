// The style of a terminal's cells: colours and attributes, as SGR sets them.

export const unstyled = Object.freeze({});

const attributes = {1: "bold", 2: "dim", 3: "italic", 4: "underline", 7: "inverse", 8: "hidden", 9: "struck", 21: "underline"};
const ends = {22: ["bold", "dim"], 23: ["italic"], 24: ["underline"], 27: ["inverse"], 28: ["hidden"], 29: ["struck"], 39: ["text"], 49: ["back"]};

// styled applies the parameters of SGR to a style. Each is a number with its subparameters, as [4, 3] of 4:3.
export function styled(style, parameters) {
  const next = {...style};
  const flat = parameters.map(p => p[0]);
  for (let i = 0; i < flat.length; i++) {
    const n = flat[i], more = parameters[i], color = n % 10, which = n < 40 || n >= 90 && n < 100 ? "text" : "back";
    if (n === 0) for (const key in next) delete next[key];
    else if (n === 4 && more[1] === 0) delete next.underline;
    else if (attributes[n]) next[attributes[n]] = true;
    else if (ends[n]) for (const key of ends[n]) delete next[key];
    else if (n === 38 || n === 48) {
      const given = more.length > 1 ? more.slice(1) : flat.slice(i + 1);
      if (given[0] === 5) {
        if (more.length === 1) i += 2;
        if (given[1] >= 0 && given[1] < 256) next[which] = indexed(given[1]);
      } else if (given[0] === 2) {
        if (more.length === 1) i += 4;
        const rgb = more.length > 5 ? given.slice(2, 5) : given.slice(1, 4); // of the form with a color space
        if (rgb.length === 3 && rgb.every(v => v >= 0 && v < 256)) next[which] = `rgb(${rgb.join(", ")})`;
      }
    } else if (n >= 30 && n < 50 && color < 8) next[which] = color;
    else if (n >= 90 && n < 108 && color < 8) next[which] = 8 + color;
  }
  return Object.freeze(next);
}

// indexed returns the color n of 256.
function indexed(n) {
  if (n < 16) return n;
  const level = x => x && 55 + 40 * x, gray = 8 + 10 * (n - 232);
  n -= 16;
  return n < 216 ? `rgb(${level(Math.floor(n / 36))}, ${level(Math.floor(n / 6) % 6)}, ${level(n % 6)})` : `rgb(${gray}, ${gray}, ${gray})`;
}

// background is the style of cells that are erased.
export const background = style => style.back === undefined ? unstyled : Object.freeze({back: style.back});
