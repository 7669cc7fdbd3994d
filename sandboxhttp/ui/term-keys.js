// What the keys of a keyboard send to a terminal.

const cursor = {ArrowUp: "A", ArrowDown: "B", ArrowRight: "C", ArrowLeft: "D", Home: "H", End: "F", F1: "P", F2: "Q", F3: "R", F4: "S"};
const numbered = {Insert: 2, Delete: 3, PageUp: 5, PageDown: 6, F5: 15, F6: 17, F7: 18, F8: 19, F9: 20, F10: 21, F11: 23, F12: 24};
const plain = {Backspace: "\x7f", Escape: "\x1b", Enter: "\r", Tab: "\t"};
const controls = {" ": "\0", "@": "\0", "[": "\x1b", "\\": "\x1c", "]": "\x1d", "^": "\x1e", "_": "\x1f", "/": "\x1f", "?": "\x7f"};

// bytesOf returns what a key sends, or "" if it is a text, which the browser puts into the input, or the
// browser's own. modes are those of the screen.
export function bytesOf({key, ctrlKey, altKey, metaKey, shiftKey, isComposing}, modes, selected) {
  if (isComposing || metaKey) return "";
  const modifiers = 1 + (shiftKey ? 1 : 0) + (altKey ? 2 : 0) + (ctrlKey ? 4 : 0), escape = altKey ? "\x1b" : "";
  if (cursor[key]) {
    if (modifiers > 1) return `\x1b[1;${modifiers}${cursor[key]}`;
    return (modes.appCursor || key[0] === "F" ? "\x1bO" : "\x1b[") + cursor[key];
  }
  if (numbered[key]) {
    if (shiftKey && !ctrlKey && !altKey && (key === "PageUp" || key === "PageDown" || key === "Insert")) return ""; // they scroll and paste
    return modifiers > 1 ? `\x1b[${numbered[key]};${modifiers}~` : `\x1b[${numbered[key]}~`;
  }
  if (key === "Tab" && shiftKey) return "\x1b[Z";
  if (key === "Tab" && ctrlKey) return "";
  if (key === "Backspace" && ctrlKey) return escape + "\b";
  if (key === "Enter" && !altKey) return ""; // a line break in the input
  if (plain[key]) return escape + plain[key];
  if (key.length !== 1) return "";
  if (!ctrlKey) return altKey && key >= " " && key < "\x7f" ? "\x1b" + key : "";
  if (shiftKey && /[a-z]/i.test(key) || key === "v" || key === "c" && selected) return ""; // copies and pastes
  if (/[a-z]/i.test(key)) return escape + String.fromCharCode(key.toUpperCase().charCodeAt(0) - 64);
  return controls[key] === undefined ? "" : escape + controls[key];
}

// pasted returns what a pasted text sends. It can't end the brackets of a program that asked for them.
export function pasted(text, modes) {
  const keys = text.replaceAll("\r\n", "\r").replaceAll("\n", "\r").replace(/[\0-\x08\x0b\x0c\x0e-\x1f\x7f]/g, "");
  return modes.bracketedPaste ? `\x1b[200~${keys}\x1b[201~` : keys;
}
