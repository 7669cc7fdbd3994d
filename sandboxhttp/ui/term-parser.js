// The parser of what programs write to a terminal: texts, and the control sequences of ECMA-48, DEC and xterm.

const modes = {1: "appCursor", 6: "origin", 7: "autowrap", 25: "cursor", 2004: "bracketedPaste"}; // the private ones

// A Parser applies output to a screen. reply is called with what the terminal answers.
export class Parser {
  constructor(screen, reply = () => {}) {
    this.screen = screen;
    this.reply = reply;
    this.state = this.ground;
  }

  write(text) {
    for (const c of text) this.state(c);
  }

  ground(c) {
    if (c < " ") this.control(c);
    else if (c < "\x7f" || c >= "\xa0") this.screen.write(c);
  }

  // control carries out a control character, also within a sequence.
  control(c) {
    const s = this.screen;
    switch (c) {
    case "\x1b":
      this.intermediates = "";
      this.state = this.escape;
      break;
    case "\b": s.move(s.x - 1, s.y); break;
    case "\t": s.tab(1); break;
    case "\n": case "\v": case "\f":
      s.index();
      if (s.modes.newLine) s.move(0, s.y);
      break;
    case "\r": s.move(0, s.y); break;
    case "\x0e": s.charset = 1; break;
    case "\x0f": s.charset = 0; break;
    case "\x18": case "\x1a": this.state = this.ground; break;
    }
  }

  escape(c) {
    if (c < " ") return this.control(c);
    if (c <= "/") {
      this.intermediates += c;
      return;
    }
    this.state = this.ground;
    const s = this.screen;
    switch (this.intermediates + c) {
    case "[":
      this.parameters = "";
      this.state = this.csi;
      break;
    case "]": case "P": case "X": case "^": case "_": this.state = this.string; break;
    case "7": s.save(); break;
    case "8": s.restore(); break;
    case "D": s.index(); break;
    case "E": s.index(); s.move(0, s.y); break;
    case "M": s.reverseIndex(); break;
    case "H": s.stop(true); break;
    case "c": s.reset(); break;
    case "=": s.modes.appKeypad = true; break;
    case ">": s.modes.appKeypad = false; break;
    case "#8": s.align(); break;
    default:
      if (this.intermediates === "(") s.charsets[0] = c;
      if (this.intermediates === ")") s.charsets[1] = c;
    }
  }

  // string drops what is for a window or for another device: titles, colours, images.
  string(c) {
    if (c === "\x07" || c === "\x18" || c === "\x1a") this.state = this.ground;
    else if (c === "\x1b") this.control(c); // of its end, ESC \
  }

  csi(c) {
    if (c < " ") return this.control(c);
    if (c < "@") {
      if (this.parameters.length < 256) this.parameters += c;
      return;
    }
    this.state = this.ground;
    const [, prefix, numbers, intermediates] = /^([<-?]?)([\d;:]*)([ -/]*)$/.exec(this.parameters) ?? [];
    if (prefix === undefined) return;
    const given = numbers.split(";").map(p => p.split(":").map(Number));
    this.sequence(prefix + intermediates + c, given, given.map(([n]) => Math.min(n, 9999)));
  }

  sequence(name, given, [first = 0, second = 0]) {
    const s = this.screen, n = Math.max(1, first);
    switch (name) {
    case "@": return s.insertCells(n);
    case "A": return s.up(n);
    case "B": case "e": return s.down(n);
    case "C": case "a": return s.move(s.x + n, s.y);
    case "D": return s.move(s.x - n, s.y);
    case "E": s.down(n); return s.move(0, s.y);
    case "F": s.up(n); return s.move(0, s.y);
    case "G": case "`": return s.move(n - 1, s.y);
    case "H": case "f": return s.goTo(Math.max(1, second) - 1, n - 1);
    case "I": return s.tab(n);
    case "J": return s.eraseInScreen(first);
    case "K": return s.eraseInLine(first);
    case "L": return s.insertLines(n);
    case "M": return s.deleteLines(n);
    case "P": return s.deleteCells(n);
    case "S": return s.scrollUp(n);
    case "T": return s.scrollDown(n);
    case "X": return s.erase(s.line, s.x, s.x + n);
    case "Z": return s.tab(-n);
    case "b": for (let i = Math.min(n, s.cols * s.rows); s.last && i > 0; i--) s.write(s.last); return;
    case "c": return this.reply("\x1b[?62;22c");
    case ">c": return this.reply("\x1b[>41;0;0c");
    case "d": return s.goTo(s.x, n - 1);
    case "g":
      if (first === 0) s.stop(false);
      if (first === 3) s.tabs = new Set();
      return;
    case "h": case "l": return this.mode(name === "h", given);
    case "?h": case "?l": return this.privateMode(name === "?h", given);
    case "m": return s.paint(given);
    case "n":
      if (first === 5) this.reply("\x1b[0n");
      if (first === 6) this.reply(`\x1b[${s.y - (s.modes.origin ? s.top : 0) + 1};${s.x + 1}R`);
      return;
    case "r": return s.margins(n - 1, (second || s.rows) - 1);
    case "s": return s.save();
    case "u": return s.restore();
    case "!p":
      Object.assign(s.modes, {autowrap: true, cursor: true, origin: false, insert: false, appCursor: false, appKeypad: false});
      s.top = 0;
      s.bottom = s.rows - 1;
      s.paint([[0]]);
      s.saved = {};
    }
  }

  mode(on, given) {
    for (const [n] of given) {
      if (n === 4) this.screen.modes.insert = on;
      if (n === 20) this.screen.modes.newLine = on;
    }
  }

  // privateMode sets the modes of DEC and xterm. Those that report the mouse are among what is ignored: the
  // mouse selects text.
  privateMode(on, given) {
    const s = this.screen;
    for (const [n] of given) {
      if (on && (n === 1048 || n === 1049)) s.save();
      if (n === 47 || n === 1047 || n === 1049) s.switchTo(on);
      if (!on && (n === 1048 || n === 1049)) s.restore();
      if (modes[n]) s.modes[modes[n]] = on;
      if (n === 6) s.goTo(0, 0);
      if (n === 7 && !on) s.wrapping = false;
      if (n === 25) s.line.changed = true;
    }
  }
}
