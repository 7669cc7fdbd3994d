// How values are shown.

// size is a number of bytes for people, as in the size of a volume.
export function size(bytes) {
  if (!(bytes >= 0)) return "unknown";
  if (bytes < 1024) return bytes + " B";
  let unit = 0;
  for (bytes /= 1024; bytes >= 1023.95 && unit < 4; unit++) bytes /= 1024; // else it would be 1024.0
  return bytes.toFixed(1) + " " + ["KB", "MB", "GB", "TB", "PB"][unit];
}

export const percent = n => (n < 9.95 ? n.toFixed(1) : Math.round(n)) + " %";

export const exact = text => new Date(text).toLocaleString([], {dateStyle: "medium", timeStyle: "medium"});
export const clock = when => new Date(when).toLocaleTimeString([], {timeStyle: "medium"});

const units = [["year", 31536000], ["month", 2592000], ["day", 86400], ["hour", 3600], ["minute", 60]];
const relative = new Intl.RelativeTimeFormat("en", {numeric: "auto"});

// ago is a time relative to now, such as "3 minutes ago" or "in 2 hours".
export function ago(text) {
  const seconds = (new Date(text) - Date.now()) / 1000;
  for (const [unit, length] of units) if (Math.abs(seconds) >= length) return relative.format(Math.trunc(seconds / length), unit);
  return Math.abs(seconds) < 5 ? "just now" : relative.format(Math.trunc(seconds), "second");
}

// duration is a number of milliseconds for people, such as "1 h 30 min".
export function duration(ms) {
  if (!ms) return "none";
  const parts = [];
  for (const [unit, length] of [["d", 86400000], ["h", 3600000], ["min", 60000], ["s", 1000]]) {
    const n = Math.floor(ms / length);
    if (n && parts.length < 2) parts.push(`${n} ${unit}`);
    ms -= n * length;
  }
  return parts.join(" ") || "below 1 s";
}

// milliseconds parses a duration such as "1h30m", "90 s" or "10" (minutes). It returns null for an empty
// text, and NaN for another.
export function milliseconds(text) {
  if (!text.trim()) return null;
  if (/^\d+(\.\d+)?$/.test(text.trim())) return Math.round(parseFloat(text) * 60000);
  let total = 0;
  const rest = text.replace(/(\d+(?:\.\d+)?)\s*(d|h|min|m|s)\w*/gi, (_, n, unit) => {
    total += parseFloat(n) * {d: 86400000, h: 3600000, m: 60000, min: 60000, s: 1000}[unit.toLowerCase()];
    return "";
  });
  return rest.trim() ? NaN : Math.round(total);
}

export const count = (n, one, many = one + "s") => `${n} ${n === 1 ? one : many}`;

const controls = /\x1b\[[0-?]*[ -/]*[@-~]|\x1b[\]PX^_][^\x07\x1b]*(\x07|\x1b\\)?|\x1b[ -/]*[0-~]|[\0-\x08\x0b-\x1f\x7f-\x9f]/g;

// printable returns a text without control characters.
export const printable = text => text.replace(controls, "");
