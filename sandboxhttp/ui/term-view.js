// The view of a terminal's screen in the document: its lines, its history, its cursor and its keys.

import {element} from "./dom.js";
import {bytesOf, pasted} from "./term-keys.js";
import {Parser} from "./term-parser.js";
import {Screen} from "./term-screen.js";
import {unstyled} from "./term-style.js";

const maxHistory = 2000; // lines
const address = /https?:\/\/[^\s"'<>`{}|\\^\u0000-\u0020]*[^\s"'<>`{}|\\^.,;:!?)\]]/g;

// A View shows a screen in a node. send is called with what the terminal sends to the program, and resized
// with its size.
export class View {
  constructor(node, name, send) {
    this.node = node;
    this.history = element("div", {className: "term-history"});
    this.live = element("div", {className: "term-live"});
    this.text = element("div", {className: "term-text", role: "log", "aria-label": "Output of the terminal of " + name}, this.history, this.live);
    this.input = element("textarea", {
      className: "term-input", name: "keys", rows: 1, autocapitalize: "off", autocomplete: "off", spellcheck: false,
      "aria-label": "Terminal of " + name, "aria-describedby": "terminal-hint",
    });
    node.replaceChildren(this.text, this.input);
    this.send = send;
    this.screen = new Screen(80, 24);
    this.screen.scrolled = line => this.keep(line);
    this.screen.forget = () => this.history.replaceChildren();
    this.parser = new Parser(this.screen, send);
    this.listen();
    this.fit();
  }

  // fit changes the screen's size to what the node has room for, and returns whether it has changed.
  fit() {
    const probe = element("div", {className: "term-line term-probe", "aria-hidden": "true"}, element("span", {}, "0".repeat(20)));
    this.live.append(probe);
    const cell = probe.firstChild.getBoundingClientRect().width / 20, line = probe.getBoundingClientRect().height;
    probe.remove();
    if (!(cell > 0 && line > 0) || this.node.clientHeight === 0) return false;
    const style = getComputedStyle(this.text);
    const across = this.text.clientWidth - parseFloat(style.paddingLeft) - parseFloat(style.paddingRight);
    const along = this.text.clientHeight - parseFloat(style.paddingTop) - parseFloat(style.paddingBottom);
    const cols = Math.max(20, Math.floor(across / cell)), rows = Math.max(4, Math.floor(along / line));
    this.cell = cell;
    this.height = line;
    if (cols === this.screen.cols && rows === this.screen.rows && this.live.children.length === rows) return false;
    this.screen.resize(cols, rows);
    this.draw();
    return true;
  }

  get size() { return {rows: this.screen.rows, cols: this.screen.cols}; }

  write(text) {
    const {text: box} = this;
    this.follow ||= box.scrollTop + box.clientHeight >= box.scrollHeight - 4;
    this.screen.line.changed = true;
    this.parser.write(text);
    this.screen.line.changed = true;
    this.frame ??= requestAnimationFrame(() => this.draw());
  }

  // keep moves a line that has left the screen to the history.
  keep(line) {
    this.history.append(this.drawn(line, -1));
    if (this.history.children.length > maxHistory) this.history.firstChild.remove();
  }

  draw() {
    this.frame = null;
    const {screen, live} = this;
    while (live.children.length > screen.rows) live.lastChild.remove();
    screen.lines.forEach((line, y) => {
      if (!line.changed && live.children[y]) return;
      line.changed = false;
      const made = this.drawn(line, y === screen.y && screen.modes.cursor ? screen.x : -1);
      if (live.children[y]) live.children[y].replaceWith(made);
      else live.append(made);
    });
    this.history.hidden = screen.alternate;
    if (this.follow !== false) this.text.scrollTop = this.text.scrollHeight;
    this.follow = undefined;
    const at = this.live.children[screen.y];
    if (at) {
      this.input.style.top = at.offsetTop - this.text.scrollTop + "px";
      this.input.style.left = at.offsetLeft + this.cell * screen.x + "px";
    }
  }

  // drawn returns the element of a line, with the cursor at a column.
  drawn({cells}, cursor) {
    const node = element("div", {className: "term-line"}), texts = cells.map(([c]) => c);
    if (cursor >= 0) while (cells.length <= cursor) cells.push([" ", unstyled]);
    const links = linksOf(texts);
    let run = null, last, link = null;
    cells.forEach(([c, style], x) => {
      if (c === "") return;
      const wide = cells[x + 1]?.[0] === "", alone = wide || x === cursor || c.codePointAt(0) > 0x24f, href = links[x];
      if (!run || alone || style !== last || href !== link) {
        run = span(style, href);
        node.append(run);
      }
      if (wide) run.classList.add("term-wide");
      else if (c.codePointAt(0) > 0x24f) run.classList.add("term-cell");
      if (x === cursor) run.classList.add("term-cursor");
      run.append(c);
      [last, link] = [style, href];
      if (alone) run = null;
    });
    return node;
  }

  listen() {
    const {input, node, screen} = this;
    let left = false; // the key before was Escape: Tab leaves
    input.onkeydown = event => {
      const leaves = event.key === "Tab" && left;
      if (event.key !== "Shift") left = event.key === "Escape";
      if (leaves) return;
      if (event.shiftKey && (event.key === "PageUp" || event.key === "PageDown")) {
        this.text.scrollBy(0, (event.key === "PageUp" ? -1 : 1) * this.height * (screen.rows - 1));
        event.preventDefault();
        return;
      }
      if (event.ctrlKey && event.shiftKey && event.key.toUpperCase() === "C") {
        event.preventDefault();
        navigator.clipboard?.writeText(String(getSelection())).catch(() => {});
        return;
      }
      const bytes = bytesOf(event, screen.modes, !getSelection().isCollapsed);
      if (!bytes) return;
      event.preventDefault();
      this.type(bytes);
    };
    input.oninput = input.oncompositionend = event => {
      if (event.isComposing) return;
      this.type(input.value.replaceAll("\n", "\r"));
      input.value = "";
    };
    input.onpaste = event => {
      event.preventDefault();
      this.type(pasted(event.clipboardData.getData("text/plain"), screen.modes));
    };
    node.onmouseup = event => { if (getSelection().isCollapsed && !event.target.closest("a")) this.focus(); };
  }

  type(bytes) {
    if (!bytes) return;
    getSelection().removeAllRanges();
    this.text.scrollTop = this.text.scrollHeight;
    this.send(bytes);
  }

  focus() { this.input.focus({preventScroll: true}); }
}

// linksOf returns the address that each cell is part of.
function linksOf(texts) {
  const links = [], line = texts.join("");
  if (!line.includes("://")) return links;
  const columns = []; // by position in the line
  texts.forEach((c, x) => { for (let i = 0; i < c.length; i++) columns.push(x); });
  for (const match of line.matchAll(address)) for (let i = 0; i < match[0].length; i++) links[columns[match.index + i]] = match[0];
  return links;
}

function span({text, back, inverse, hidden, ...attributes}, href) {
  const made = href ? element("a", {href, target: "_blank", rel: "noopener noreferrer", tabIndex: -1}) : element("span");
  if (inverse) [text, back] = [back ?? "back", text ?? "text"];
  if (hidden) text = back ?? "back";
  for (const [kind, property, color] of [["text", "color", text], ["back", "backgroundColor", back]]) {
    if (typeof color === "string" && color.startsWith("rgb")) made.style[property] = color;
    else if (color !== undefined) made.classList.add(`${kind}-${color}`);
  }
  for (const name in attributes) made.classList.add("term-" + name);
  return made;
}
