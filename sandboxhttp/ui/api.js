// Requests to the server that this page came from, and how values are shown.

const base = new URL("../", location.href);
const key = "sandbox-token:" + base.pathname;

// takeToken keeps the token of the address for this tab, and removes it from the address.
function takeToken() {
  const given = new URLSearchParams(location.hash.slice(1)).get("token");
  if (given === null) return false;
  setToken(given);
  history.replaceState(null, "", location.pathname);
  return true;
}

export function setToken(token) { sessionStorage.setItem(key, token); }

takeToken();
addEventListener("hashchange", () => { if (takeToken()) location.reload(); });

// call sends a request, and returns the JSON of its answer. An error has the answer's status, and
// is stale if there is another token by now.
export async function call(method, path, body) {
  const headers = {};
  const token = sessionStorage.getItem(key);
  if (token) headers.Authorization = "Bearer " + token;
  if (body !== undefined) headers["Content-Type"] = "application/json";
  const send = () => fetch(new URL(path, base), {method, headers, body: body && JSON.stringify(body), cache: "no-store", redirect: "error"});
  // Browsers give up new connections when the machine's interfaces change, as they do with each container.
  const answer = await send().catch(error => {
    if (method === "GET") return send();
    throw new Error(`No answer came (${error.message}). See whether it was done before you try again.`);
  });
  const value = await answer.json().catch(() => null);
  if (!answer.ok) throw Object.assign(new Error(value?.error?.message ?? answer.statusText), {status: answer.status, stale: token !== sessionStorage.getItem(key)});
  return value;
}

// streamURL is the address of an EventSource or, with the scheme ws, a WebSocket: they send no
// headers, so that it has the token.
export function streamURL(path, scheme = "http") {
  const url = new URL(path, base);
  url.protocol = url.protocol.replace("http", scheme);
  const token = sessionStorage.getItem(key);
  if (token) url.searchParams.set("access_token", token);
  return url;
}

// path joins the parts of a path, which may have any characters.
export const path = (...parts) => parts.map(encodeURIComponent).join("/");

// size is a number of bytes for people, as in the size of a volume.
export function size(bytes) {
  if (!(bytes >= 0)) return "unknown";
  if (bytes < 1024) return bytes + " B";
  let unit = 0;
  for (bytes /= 1024; bytes >= 1023.95 && unit < 4; unit++) bytes /= 1024; // else it would be 1024.0
  return bytes.toFixed(1) + " " + ["KB", "MB", "GB", "TB", "PB"][unit];
}

export const date = text => new Date(text).toLocaleString([], {dateStyle: "short", timeStyle: "short"});

// element makes an element. Children are elements and texts; what a sandbox said is only ever
// a text. Properties are set as such, those with a hyphen, and role, as attributes.
export function element(name, properties = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(properties)) {
    if (key.includes("-") || key === "role" || key === "list") made.setAttribute(key, value);
    else made[key] = value;
  }
  made.append(...children);
  return made;
}

// setText changes a text only if it is another one: a screen reader reads a change out.
export function setText(node, text) {
  if (node.textContent !== text) node.textContent = text;
}
