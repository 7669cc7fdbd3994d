// A terminal: a WebSocket to a shell, and a view that knows what a shell's line editing and
// coloured output need. Other control sequences are dropped.

import {element, path, streamURL} from "./api.js";

const maxLines = 2000;
const shell = ["sh", "-c", "command -v bash >/dev/null && exec bash; exec sh"];
const controls = /\x1b\[[0-?]*[ -/]*[@-~]|\x1b[\]PX^_][^\x07\x1b]*(\x07|\x1b\\)?|\x1b[ -/]*[0-~]|[\0-\x08\x0b-\x1f\x7f-\x9f]/g;

// plain returns a text without control characters.
export const plain = text => text.replace(controls, "");

// openTerminal starts a shell in a sandbox. ended is called once, with the reason. The function
// that it returns ends the shell.
export function openTerminal(id, output, keys, ended) {
  const screen = new Screen(output);
  const socket = new WebSocket(streamURL(path("sandboxes", id, "terminal"), "ws"));
  socket.binaryType = "arraybuffer";
  const decoder = new TextDecoder();
  let why = "";
  const send = text => {
    const bytes = new TextEncoder().encode(text);
    for (let at = 0; at < bytes.length && socket.readyState === WebSocket.OPEN; at += 1 << 16) socket.send(bytes.slice(at, at + (1 << 16)));
  };
  const measure = new ResizeObserver(() => {
    if (screen.resize() && socket.readyState === WebSocket.OPEN) socket.send(JSON.stringify(screen.size()));
  });
  socket.onopen = () => {
    socket.send(JSON.stringify({command: shell, env: {TERM: "ansi"}, ...screen.size()}));
    measure.observe(output);
    keys.focus();
  };
  socket.onmessage = ({data}) => {
    if (data instanceof ArrayBuffer) return screen.write(decoder.decode(data, {stream: true}));
    const event = JSON.parse(data);
    if (event.event === "exit") why = `The shell has ended with code ${event.exitCode}.`;
    if (event.event === "failed") why = event.error.message;
  };
  socket.onclose = () => {
    measure.disconnect();
    keys.onkeydown = keys.oninput = keys.oncompositionend = output.onclick = null;
    ended(why || "The connection has ended.");
  };
  keys.onkeydown = event => {
    const text = keyText(event);
    if (!text) return;
    event.preventDefault();
    send(text);
  };
  keys.oninput = keys.oncompositionend = event => {
    if (event.isComposing) return;
    send(keys.value.replaceAll("\n", "\r"));
    keys.value = "";
  };
  output.onclick = () => { if (getSelection().isCollapsed) keys.focus(); };
  return () => socket.close();
}

const special = {
  Backspace: "\x7f", Escape: "\x1b", Delete: "\x1b[3~", Home: "\x1b[H", End: "\x1b[F",
  ArrowUp: "\x1b[A", ArrowDown: "\x1b[B", ArrowRight: "\x1b[C", ArrowLeft: "\x1b[D",
};

// keyText returns what a key sends, if that is no text: the browser puts texts into the input.
function keyText({key, ctrlKey, altKey, metaKey, shiftKey, isComposing}) {
  if (isComposing || metaKey || altKey) return "";
  if (!ctrlKey) return special[key];
  const copies = key === "c" && !getSelection().isCollapsed;
  if (shiftKey || copies || key === "v" || !/^[a-z[\\\]]$/.test(key)) return "";
  return String.fromCharCode(key.toUpperCase().charCodeAt(0) & 31);
}

const blank = [" ", {}];

// A Screen shows output as lines of cells [character, style]. The cursor moves in the last ones.
class Screen {
  constructor(node) {
    this.node = node;
    this.lines = [];
    this.row = this.col = 0;
    this.style = {};
    this.parse = this.text;
    this.dirty = new Set();
    node.replaceChildren();
    this.resize();
    this.go(0);
    this.draw();
  }

  size() { return {rows: this.rows, cols: this.cols}; }

  // resize measures the node, and returns whether the size is another one.
  resize() {
    const probe = element("span", {"aria-hidden": "true"}, "0".repeat(20));
    this.node.append(probe);
    const {width, height} = probe.getBoundingClientRect();
    probe.remove();
    const style = getComputedStyle(this.node);
    const inner = this.node.clientWidth - parseFloat(style.paddingLeft) - parseFloat(style.paddingRight);
    const cols = Math.max(20, Math.floor(inner / (width / 20)) || 0), rows = Math.max(5, Math.floor(this.node.clientHeight / height) || 0);
    const same = cols === this.cols && rows === this.rows;
    [this.cols, this.rows] = [cols, rows];
    return !same;
  }

  write(text) {
    const atEnd = this.node.scrollTop + this.node.clientHeight >= this.node.scrollHeight - 4;
    this.follow ||= atEnd;
    this.touch(); // where the cursor was
    for (const c of text) this.parse(c);
    this.touch();
    this.frame ??= requestAnimationFrame(() => this.draw());
  }

  get top() { return Math.max(0, this.lines.length - this.rows); }
  get line() { return this.lines[this.row]; }
  touch() { this.dirty.add(this.line); }

  // go puts the cursor on a line, which it adds if needed.
  go(row) {
    for (this.row = row; this.row >= this.lines.length;) {
      const line = {cells: [], node: element("div")};
      this.lines.push(line);
      this.node.append(line.node);
      if (this.lines.length > maxLines) {
        const first = this.lines.shift();
        first.node.remove();
        this.dirty.delete(first);
        this.row--;
      }
    }
    this.touch();
  }

  put(c) {
    if (this.col >= this.cols) {
      this.go(this.row + 1);
      this.col = 0;
    }
    const {cells} = this.line;
    while (cells.length < this.col) cells.push(blank);
    cells[this.col++] = [c, this.style];
  }

  // The states of the parser: each takes one character.

  text(c) {
    if (c === "\x1b") this.parse = this.escape;
    else if (c === "\n") this.go(this.row + 1);
    else if (c === "\r") this.col = 0;
    else if (c === "\b") this.col = Math.max(0, Math.min(this.col, this.cols) - 1);
    else if (c === "\t") this.col = Math.min(this.cols - 1, (this.col | 7) + 1);
    else if (c >= " " && !(c >= "\x7f" && c < "\xa0")) this.put(c);
  }

  escape(c) {
    this.parameters = "";
    if (c === "[") this.parse = this.control;
    else if ("]PX^_".includes(c)) this.parse = this.string;
    else if (c < " " || c > "/") this.parse = this.text; // those between go on
  }

  string(c) {
    if (c === "\x07") this.parse = this.text;
    else if (c === "\x1b") this.parse = this.escape; // of its end, ESC \
  }

  control(c) {
    if (c >= " " && c <= "?") {
      if (this.parameters.length < 64) this.parameters += c;
      return;
    }
    this.parse = this.text;
    if (!/^[\d;:]*$/.test(this.parameters)) return; // private ones
    const given = this.parameters.split(/[;:]/).map(Number);
    const n = Math.max(1, Math.min(given[0], 999)), {line} = this, {cells} = line, col = Math.min(this.col, this.cols - 1);
    this.touch();
    switch (c) {
    case "A": return this.go(Math.max(this.top, this.row - n));
    case "B": return this.go(Math.min(this.top + this.rows - 1, this.row + n));
    case "C": this.col = Math.min(this.cols - 1, col + n); return;
    case "D": this.col = Math.max(0, col - n); return;
    case "G": this.col = Math.min(this.cols, n) - 1; return;
    case "H":
      this.col = Math.max(1, Math.min(this.cols, given[1] || 1)) - 1;
      return this.go(this.top + Math.min(this.rows, n) - 1);
    case "J": return this.erase(given[0]);
    case "K":
      if (given[0] === 0) cells.length = Math.min(cells.length, col);
      else cells.fill(blank, 0, given[0] === 1 ? col + 1 : cells.length);
      return;
    case "P": cells.splice(col, n); return;
    case "@":
      if (col < cells.length) cells.splice(col, 0, ...Array(Math.min(n, this.cols)).fill(blank));
      cells.length = Math.min(cells.length, this.cols);
      return;
    case "m": this.style = styled(this.style, given);
    }
  }

  // erase empties the screen from the cursor on, or as a whole.
  erase(part) {
    if (part === 1) return;
    const rest = part === 0 ? this.row + 1 : this.top;
    if (part === 0) this.line.cells.length = Math.min(this.line.cells.length, this.col);
    for (const line of this.lines.slice(rest)) {
      line.cells.length = 0;
      this.dirty.add(line);
    }
  }

  draw() {
    this.frame = null;
    for (const line of this.dirty) {
      const cells = line.cells.slice(), runs = [];
      if (line === this.line) {
        while (cells.length <= this.col) cells.push(blank);
        const [c, style] = cells[this.col];
        cells[this.col] = [c, {...style, cursor: true}];
      }
      let last = null;
      for (const [c, style] of cells) {
        if (style !== last) runs.push(span(style));
        last = style;
        runs.at(-1).textContent += c;
      }
      line.node.replaceChildren(...runs);
    }
    this.dirty.clear();
    if (this.follow) this.node.scrollTop = this.node.scrollHeight;
    this.follow = false;
  }
}

// styled applies the parameters of SGR to a style.
function styled(style, given) {
  const next = {...style};
  for (let i = 0; i < given.length; i++) {
    const n = given[i], color = n % 10, which = Math.floor(n / 10) % 2 ? "text" : "back"; // 3x, 9x; 4x, 10x
    if (n === 0) for (const key in next) delete next[key];
    else if (n === 1) next.bold = true;
    else if (n === 4) next.underline = true;
    else if (n === 7) next.inverse = true;
    else if (n === 22 || n === 24 || n === 27) delete next[{22: "bold", 24: "underline", 27: "inverse"}[n]];
    else if (n >= 30 && n <= 49 && color < 8) next[which] = color;
    else if (n >= 90 && n <= 107 && color < 8) next[which] = 8 + color;
    else if (n === 39 || n === 49) delete next[which];
    else if ((n === 38 || n === 48) && given[i + 1] === 5) next[which] = indexed(given[i += 2]);
    else if ((n === 38 || n === 48) && given[i + 1] === 2) {
      next[which] = `rgb(${given.slice(i + 2, i + 5)})`;
      i += 4;
    }
  }
  return next;
}

// indexed returns the color n of 256.
function indexed(n) {
  if (n < 16) return n;
  const level = x => x && 55 + 40 * x, gray = 8 + 10 * (n - 232);
  n -= 16;
  return n < 216 ? `rgb(${level(Math.floor(n / 36))},${level(Math.floor(n / 6) % 6)},${level(n % 6)})` : `rgb(${gray},${gray},${gray})`;
}

function span({text, back, bold, underline, inverse, cursor}) {
  const made = element("span");
  if (inverse) [text, back] = [back ?? "back", text ?? "text"];
  for (const [kind, property, color] of [["text", "color", text], ["back", "backgroundColor", back]]) {
    if (typeof color === "string" && color.startsWith("rgb")) made.style[property] = color;
    else if (color !== undefined) made.classList.add(`${kind}-${color}`);
  }
  for (const [name, on] of Object.entries({bold, underline, cursor})) if (on) made.classList.add(name);
  return made;
}
