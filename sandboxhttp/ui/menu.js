// The menu of actions of one thing.

import {button, byId} from "./dom.js";

const menu = byId("menu");
let opener = null;

// menuButton makes a button that opens a menu. items returns [{label, act, danger, href}] when it does.
export function menuButton(name, items) {
  const made = button("⋯", () => open(made, name, items()), {className: "menu-button", "aria-label": "Actions for " + name, "aria-haspopup": "menu", "aria-expanded": "false"});
  return made;
}

function open(at, name, items) {
  if (opener === at) return menu.hidePopover();
  menu.setAttribute("aria-label", "Actions for " + name);
  menu.replaceChildren(...items.map(({label, act, danger}) => button(label, () => {
    const from = opener;
    menu.hidePopover();
    from?.focus();
    act();
  }, {role: "menuitem", className: danger ? "danger" : "", tabIndex: -1})));
  menu.showPopover();
  opener = at;
  at.setAttribute("aria-expanded", "true");
  const box = at.getBoundingClientRect(), {offsetWidth: width, offsetHeight: height} = menu;
  const below = box.bottom + 4 + height <= innerHeight || box.top < height;
  menu.style.top = Math.max(4, Math.min(below ? box.bottom + 4 : box.top - 4 - height, innerHeight - height - 4)) + "px";
  menu.style.left = Math.max(4, Math.min(box.right - width, innerWidth - width - 4)) + "px";
  menu.firstChild.focus();
}

menu.addEventListener("toggle", event => {
  if (event.newState === "open") return;
  opener?.setAttribute("aria-expanded", "false");
  if (opener && menu.contains(document.activeElement)) opener.focus();
  opener = null;
});

menu.onkeydown = event => {
  const all = [...menu.children], at = all.indexOf(document.activeElement);
  const to = {ArrowDown: at + 1, ArrowUp: at - 1, Home: 0, End: -1}[event.key];
  if (event.key === "Tab") {
    const from = opener;
    menu.hidePopover();
    from?.focus(); // from which Tab goes on
  }
  if (event.key === "Escape") {
    const from = opener;
    event.preventDefault();
    menu.hidePopover();
    from?.focus();
  }
  if (to === undefined) return;
  event.preventDefault();
  all.at(to % all.length).focus();
};

addEventListener("scroll", () => { if (opener) menu.hidePopover(); }, {capture: true, passive: true});
addEventListener("resize", () => { if (opener) menu.hidePopover(); });
