// Requests to the server that this page came from.

const base = new URL("../", location.href);
const key = "sandbox-token:" + base.pathname;

// takeToken keeps the token of the address for this tab, and removes it from the address.
function takeToken() {
  const given = new URLSearchParams(location.hash.slice(1)).get("token");
  if (given === null || location.hash.startsWith("#/")) return false;
  setToken(given);
  history.replaceState(null, "", location.pathname);
  return true;
}

export function setToken(token) { sessionStorage.setItem(key, token); }

takeToken();
addEventListener("hashchange", () => { if (takeToken()) location.reload(); });

function authorized(headers = {}) {
  const token = sessionStorage.getItem(key);
  if (token) headers.Authorization = "Bearer " + token;
  return headers;
}

// request sends a request, and returns its answer. An error has the answer's status and code, and is stale
// if there is another token by now; without an answer it is unanswered.
export async function request(method, path, {body, headers, signal} = {}) {
  const token = sessionStorage.getItem(key);
  const send = () => fetch(new URL(path, base), {method, headers: authorized(headers), body, signal, cache: "no-store", redirect: "error"});
  // Browsers give up new connections when the machine's interfaces change, as they do with each container.
  const answer = await send().catch(error => {
    if (signal?.aborted) throw error;
    return method === "GET" ? send() : Promise.reject(error);
  }).catch(error => {
    if (signal?.aborted) throw error;
    const text = method === "GET" ? "The server does not answer." : `No answer came (${error.message}). See whether it was done before you try again.`;
    throw Object.assign(new Error(text), {unanswered: true});
  });
  if (answer.ok) return answer;
  const value = await answer.json().catch(() => null);
  throw Object.assign(new Error(value?.error?.message ?? answer.statusText), {status: answer.status, code: value?.error?.code, stale: token !== sessionStorage.getItem(key)});
}

// call sends JSON, and returns the JSON of the answer.
export async function call(method, path, value) {
  const body = value && JSON.stringify(value);
  const answer = await request(method, path, {body, headers: value === undefined ? {} : {"Content-Type": "application/json"}});
  return answer.json().catch(() => null);
}

// follow sends JSON, and calls step with each line of the answer but the last, which it returns.
export async function follow(method, path, value, step) {
  const answer = await request(method, path, {body: JSON.stringify(value), headers: {"Content-Type": "application/json", Accept: "application/x-ndjson"}});
  let rest = "", last = null;
  const take = text => {
    const lines = (rest + text).split("\n");
    rest = lines.pop();
    for (const line of lines.filter(Boolean)) {
      last = JSON.parse(line);
      step(last);
    }
  };
  try {
    for (const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();;) {
      const {done, value: text} = await reader.read();
      if (done) break;
      take(text);
    }
  } catch (error) {
    throw Object.assign(new Error(`The answer ended too early (${error.message}). See whether it was done before you try again.`), {unanswered: true});
  }
  take("\n");
  return last;
}

// streamURL is the address of an EventSource, a link or, with the scheme ws, a WebSocket: they send no
// headers, so that it has the token.
export function streamURL(path, scheme = "http") {
  const url = new URL(path, base);
  url.protocol = url.protocol.replace("http", scheme);
  const token = sessionStorage.getItem(key);
  // searchParams would encode all anew, and take bytes that are not UTF-8 for characters.
  if (token) url.search += (url.search ? "&" : "?") + "access_token=" + encodeURIComponent(token);
  return url;
}

// previewURL is the address of a web server in a sandbox.
export function previewURL(port, name, domain) {
  const url = new URL(location.origin);
  url.hostname = `${port}-${name}.${domain}`;
  const token = sessionStorage.getItem(key);
  if (token) url.searchParams.set("access_token", token);
  return url;
}

// path joins the parts of a path, which may have any characters.
export const path = (...parts) => parts.map(encodeURIComponent).join("/");
