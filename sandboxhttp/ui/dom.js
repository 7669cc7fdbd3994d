// Elements of the document.

import {ago, exact} from "./format.js";

export const byId = id => document.getElementById(id);

// element makes an element. Children are elements and texts; what a sandbox said is only ever
// a text. Properties are set as such, those with a hyphen, and role, as attributes.
export function element(name, properties = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(properties)) {
    if (value === undefined) continue;
    if (key.includes("-") || key === "role" || key === "list") made.setAttribute(key, value);
    else made[key] = value;
  }
  made.append(...children.filter(child => child !== null && child !== undefined));
  return made;
}

// shape makes an element of a picture.
export function shape(name, attributes = {}, ...children) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.append(...children);
  return made;
}

export const button = (text, act, properties = {}) => element("button", {type: "button", onclick: act, ...properties}, text);
export const link = (text, href, properties = {}) => element("a", {href, ...properties}, text);

// setText changes a text only if it is another one: a screen reader reads a change out.
export function setText(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

export function setAttribute(node, name, value) {
  if (value === null) node.removeAttribute(name);
  else if (node.getAttribute(name) !== value) node.setAttribute(name, value);
}

// keyed makes the children of a node one for each item. It keeps those that there are, so that
// the focus and what is selected remain.
export function keyed(node, items, id, make, update = () => {}) {
  const old = new Map([...node.children].map(row => [row.dataset.id, row]));
  const ids = new Set(items.map(id));
  for (const [key, row] of old) if (!ids.has(key)) row.remove();
  items.forEach((item, i) => {
    const key = id(item), row = old.get(key) ?? make(item);
    row.dataset.id = key;
    if (node.children[i] !== row) node.insertBefore(row, node.children[i] ?? null);
    update(row, item);
  });
}

export const part = (node, name) => node.querySelector("." + name);

// time shows how long ago something was, with the exact time for a mouse. It is kept up to date.
export const time = text => retime(element("time", {dateTime: text, title: exact(text)}));

function retime(node) {
  setText(node, ago(node.dateTime));
  return node;
}

setInterval(() => document.querySelectorAll("time").forEach(retime), 5000);

// state shows the state of a sandbox.
export function showState(node, status) {
  if (node.dataset.status === status) return;
  node.dataset.status = status;
  node.classList.add("state");
  node.replaceChildren(element("span", {className: "dot", "aria-hidden": "true"}), status);
}

// empty says that there is nothing, and what to do next.
export const empty = (title, text, ...actions) =>
  element("div", {className: "empty"}, element("p", {className: "empty-title"}, title), element("p", {className: "hint"}, text), ...actions);

// facts is a list of names and values, which are texts or elements.
export const facts = pairs => element("dl", {className: "facts"},
  ...pairs.filter(Boolean).map(([name, value]) => element("div", {}, element("dt", {}, name), element("dd", {}, value))));

// say tells what was done, and fail what was not.
export function say(text) {
  byId("trouble").textContent = "";
  setText(byId("news"), text);
}

export function fail(error) {
  byId("news").textContent = "";
  setText(byId("trouble"), error.message);
}

// focusOn gives the focus to what can take it, else to the heading of the view.
export function focusOn(node) {
  node?.focus?.();
  if (!node || document.activeElement !== node) document.querySelector("main h1")?.focus();
}
