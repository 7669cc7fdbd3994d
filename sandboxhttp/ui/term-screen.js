// The screen of a terminal: lines of cells, a cursor, and the operations on them. It knows no document.

import {background, styled, unstyled} from "./term-style.js";
import {width} from "./term-width.js";

const clamp = (n, low, high) => Math.max(low, Math.min(high, n));
const lineDrawing = "◆▒␉␌␍␊°±␤␋┘┐┌└┼⎺⎻─⎼⎽├┤┴┬│≤≥π≠£·"; // of the DEC special graphics, from ` on

// A line has cells [character, style], of which those at the end may be missing. The second cell of a wide
// character is empty. changed says that it is to be drawn.
const blankLine = () => ({cells: [], changed: true});

export class Screen {
  constructor(cols, rows) {
    this.cols = cols;
    this.rows = rows;
    this.scrolled = line => {}; // called with each line that leaves the top of the screen
    this.forget = () => {}; // called when these are to be forgotten
    this.reset();
  }

  reset() {
    this.main = this.lines = Array.from({length: this.rows}, blankLine);
    this.x = this.y = 0;
    this.wrapping = false; // the cursor is beyond the last column
    this.style = unstyled;
    this.top = 0;
    this.bottom = this.rows - 1;
    this.modes = {autowrap: true, cursor: true};
    this.charsets = ["B", "B"];
    this.charset = 0;
    this.tabs = null; // the columns of stops, once they are set
    this.saved = {}; // cursors, by the screen
    this.last = "";
  }

  get line() { return this.lines[this.y]; }
  get alternate() { return this.lines !== this.main; }

  resize(cols, rows) {
    if (this.main !== this.lines) this.fit(this.main, rows, false);
    this.y = clamp(this.y + this.fit(this.lines, rows, !this.alternate), 0, rows - 1);
    this.cols = cols;
    this.rows = rows;
    this.x = Math.min(this.x, cols - 1);
    this.wrapping = false;
    this.top = 0;
    this.bottom = rows - 1;
    for (const line of this.lines) line.changed = true;
  }

  // fit changes the number of lines, and returns by how much the cursor's line has moved.
  fit(lines, rows, keep) {
    let moved = 0;
    while (lines.length > rows) {
      if (lines.length - 1 > this.y + moved && lines.at(-1).cells.length === 0) lines.pop();
      else {
        const first = lines.shift();
        if (keep) this.scrolled(first);
        moved--;
      }
    }
    while (lines.length < rows) lines.push(blankLine());
    return moved;
  }

  // write puts a character at the cursor.
  write(c) {
    if (this.charsets[this.charset] === "0" && c >= "`" && c <= "~") c = lineDrawing[c.charCodeAt(0) - 96] ?? c;
    const cells = width(c);
    if (cells === 0) return this.combine(c);
    if (this.wrapping || this.x + cells > this.cols) {
      if (this.modes.autowrap) {
        this.index();
        this.x = 0;
      } else this.x = this.cols - cells;
      this.wrapping = false;
    }
    const {line} = this;
    if (this.modes.insert) this.insertCells(cells);
    this.fill(line, this.x + cells);
    this.split(line, this.x);
    this.split(line, this.x + cells);
    line.cells[this.x] = [c, this.style];
    if (cells === 2) line.cells[this.x + 1] = ["", this.style];
    line.changed = true;
    this.last = c;
    this.x += cells;
    if (this.x >= this.cols) {
      this.x = this.cols - 1;
      this.wrapping = this.modes.autowrap;
    }
  }

  combine(c) {
    const {cells} = this.line;
    let at = this.wrapping ? this.x : this.x - 1;
    if (cells[at]?.[0] === "") at--;
    if (cells[at] && cells[at][0].length < 16) cells[at] = [cells[at][0] + c, cells[at][1]];
    this.line.changed = true;
  }

  fill(line, length) {
    while (line.cells.length < length) line.cells.push([" ", unstyled]);
  }

  // split makes spaces of a wide character of which only the second half remains at a column.
  split({cells}, x) {
    if (cells[x]?.[0] !== "") return;
    cells[x - 1] = [" ", cells[x - 1][1]];
    cells[x] = [" ", cells[x][1]];
  }

  // Movements of the cursor.

  move(x, y) {
    this.line.changed = true;
    this.x = clamp(x, 0, this.cols - 1);
    this.y = clamp(y, 0, this.rows - 1);
    this.wrapping = false;
    this.line.changed = true;
  }

  // goTo goes to a position, which in origin mode is within the scrolled region.
  goTo(x, y) {
    if (this.modes.origin) this.move(x, clamp(this.top + y, this.top, this.bottom));
    else this.move(x, y);
  }

  up(n) { this.move(this.x, Math.max(this.y - n, this.y >= this.top ? this.top : 0)); }
  down(n) { this.move(this.x, Math.min(this.y + n, this.y <= this.bottom ? this.bottom : this.rows - 1)); }

  index() {
    this.line.changed = true;
    if (this.y === this.bottom) this.scrollUp(1);
    else this.move(this.x, this.y + 1);
    this.wrapping = false;
    this.line.changed = true;
  }

  reverseIndex() {
    if (this.y === this.top) this.scrollDown(1);
    else this.move(this.x, this.y - 1);
  }

  tab(n) {
    let x = this.x;
    const step = n > 0 ? 1 : -1;
    for (; n; n -= step) do x += step; while (x > 0 && x < this.cols - 1 && !(this.tabs ? this.tabs.has(x) : x % 8 === 0));
    this.move(x, this.y);
  }

  stop(set) {
    this.tabs ??= new Set(Array.from({length: Math.ceil(this.cols / 8)}, (_, i) => 8 * i));
    if (set) this.tabs.add(this.x);
    else this.tabs.delete(this.x);
  }

  save() { this.saved[this.alternate] = {x: this.x, y: this.y, style: this.style, charsets: [...this.charsets], charset: this.charset, origin: this.modes.origin}; }

  restore() {
    const {x = 0, y = 0, style = unstyled, charsets = ["B", "B"], charset = 0, origin = false} = this.saved[this.alternate] ?? {};
    Object.assign(this, {style, charset, charsets: [...charsets]});
    this.modes.origin = origin;
    this.move(x, y);
  }

  // Changes of lines.

  margins(top, bottom) {
    if (top >= bottom || top < 0 || bottom >= this.rows) return;
    this.top = top;
    this.bottom = bottom;
    this.goTo(0, 0);
  }

  scrollUp(n, from = this.top) {
    for (n = Math.min(n, this.bottom - from + 1); n > 0; n--) {
      const [line] = this.lines.splice(from, 1);
      if (from === 0 && !this.alternate) this.scrolled(line);
      this.lines.splice(this.bottom, 0, this.erasedLine());
    }
    this.changed(from, this.bottom);
  }

  scrollDown(n, from = this.top) {
    for (n = Math.min(n, this.bottom - from + 1); n > 0; n--) {
      this.lines.splice(this.bottom, 1);
      this.lines.splice(from, 0, this.erasedLine());
    }
    this.changed(from, this.bottom);
  }

  changed(from, to) { for (let y = from; y <= to; y++) this.lines[y].changed = true; }

  erasedLine() {
    const line = blankLine(), style = background(this.style);
    if (style !== unstyled) line.cells = Array.from({length: this.cols}, () => [" ", style]);
    return line;
  }

  insertLines(n) {
    if (this.y < this.top || this.y > this.bottom) return;
    this.scrollDown(n, this.y);
    this.move(0, this.y);
  }

  deleteLines(n) {
    if (this.y < this.top || this.y > this.bottom) return;
    // What is deleted at the top is no history.
    const {scrolled} = this;
    this.scrolled = () => {};
    this.scrollUp(n, this.y);
    this.scrolled = scrolled;
    this.move(0, this.y);
  }

  insertCells(n) {
    const {line, x} = this, style = background(this.style);
    this.split(line, x);
    if (x < line.cells.length) line.cells.splice(x, 0, ...Array.from({length: Math.min(n, this.cols)}, () => [" ", style]));
    line.cells.length = Math.min(line.cells.length, this.cols);
    this.wrapping = false;
    line.changed = true;
  }

  deleteCells(n) {
    const {line, x} = this, style = background(this.style);
    this.fill(line, style === unstyled ? 0 : this.cols);
    this.split(line, x);
    this.split(line, x + n);
    line.cells.splice(x, n);
    while (style !== unstyled && line.cells.length < this.cols) line.cells.push([" ", style]);
    this.wrapping = false;
    line.changed = true;
  }

  // erase empties the cells of a line in [from, to).
  erase(line, from, to) {
    const style = background(this.style);
    this.split(line, from);
    this.split(line, to);
    if (to >= this.cols && style === unstyled) line.cells.length = Math.min(line.cells.length, from);
    else {
      this.fill(line, Math.min(to, this.cols));
      for (let x = from; x < Math.min(to, this.cols); x++) line.cells[x] = [" ", style];
    }
    line.changed = true;
  }

  eraseInLine(part) {
    if (part > 2) return;
    this.erase(this.line, part === 0 ? this.x : 0, part === 1 ? this.x + 1 : this.cols);
    this.wrapping = false;
  }

  eraseInScreen(part) {
    if (part === 3) return this.forget();
    if (part > 2) return;
    if (part < 2) this.eraseInLine(part);
    const [from, to] = [[this.y + 1, this.rows], [0, this.y], [0, this.rows]][part];
    for (let y = from; y < to; y++) this.erase(this.lines[y], 0, this.cols);
    this.wrapping = false;
  }

  // align fills the screen, as DECALN does.
  align() {
    for (const line of this.lines) Object.assign(line, {cells: Array.from({length: this.cols}, () => ["E", unstyled]), changed: true});
    this.top = 0;
    this.bottom = this.rows - 1;
    this.move(0, 0);
  }

  // switchTo shows the alternate screen, or the main one.
  switchTo(alternate) {
    if (alternate === this.alternate) return;
    this.lines = alternate ? Array.from({length: this.rows}, blankLine) : this.main;
    this.top = 0;
    this.bottom = this.rows - 1;
    this.changed(0, this.rows - 1);
    this.move(this.x, this.y);
  }

  paint(parameters) { this.style = styled(this.style, parameters); }

  // text returns the lines as texts, without the spaces at their ends.
  text() { return this.lines.map(({cells}) => cells.map(([c]) => c).join("").trimEnd()); }
}
