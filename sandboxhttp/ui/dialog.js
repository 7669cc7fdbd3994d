// The dialog: the fields of an action, the plan for them, and its confirmation.

import {element} from "./api.js";

const byId = id => document.getElementById(id);
const dialog = byId("dialog"), form = dialog.querySelector("form"), confirm = byId("dialog-confirm"), trouble = byId("dialog-trouble");
let close = null; // ends the dialog that is open

// ask shows an action, and runs it when it is confirmed. It returns whether it has run.
//
//   title, verb  the heading, and the text of the button
//   fields       [{name, label, hint, type, …}], further properties are those of the input
//   plan         returns the lines of the plan for the values of the fields
//   run          does it; if it fails, the dialog remains open with the error
//   late         gets the error if the dialog was closed meanwhile
export function ask({title, verb, fields = [], plan, run, late, danger = false}) {
  close?.();
  byId("dialog-title").textContent = title;
  confirm.textContent = verb;
  confirm.classList.toggle("danger", danger);
  busy(false);
  const inputs = fields.map(field);
  byId("fields").replaceChildren(...inputs.map(i => i.row));
  const values = () => Object.fromEntries(inputs.map(({name, input}) =>
    [name, input.type === "checkbox" ? input.checked : input.type === "number" ? (input.value === "" ? null : input.valueAsNumber) : input.value.trim()]));
  const showPlan = () => byId("plan-lines").replaceChildren(...(plan?.(values()) ?? []).map(line => element("li", {}, line)));
  byId("plan").hidden = !plan;
  showPlan();
  form.oninput = showPlan;

  return new Promise(done => {
    let open = true;
    close = ran => {
      if (!open) return;
      open = false;
      dialog.close();
      // The browser gives the focus back, but not to what the action has removed: then it is nowhere, or
      // still in the dialog until the browser lays the page out again.
      if (document.activeElement === document.body || dialog.contains(document.activeElement)) byId("list-title").focus();
      done(ran === true);
    };
    dialog.onclose = () => { if (!dialog.open) close(); }; // by the key Escape
    byId("dialog-cancel").onclick = close;
    form.onsubmit = async event => {
      event.preventDefault();
      if (confirm.disabled) return;
      const end = close;
      busy(true);
      try {
        await run(values());
        end(true);
      } catch (error) {
        if (!open) return late(error);
        busy(false);
        trouble.textContent = error.message;
      }
    };
    dialog.showModal();
    (inputs[0]?.input ?? byId("dialog-cancel")).focus(); // not what confirms
  });
}

// busy shows that the action runs.
function busy(on) {
  trouble.textContent = "";
  byId("dialog-busy").textContent = on ? "In progress …" : "";
  if (on) byId("dialog-cancel").focus();
  confirm.disabled = on;
}

function field({name, label, hint, options, ...properties}) {
  const input = element("input", {id: "field-" + name, name, autocomplete: "off", spellcheck: false, ...properties});
  const row = element("div", {className: "field" + (input.type === "checkbox" ? " check" : "")}, element("label", {htmlFor: input.id}, label), input);
  if (options) {
    input.setAttribute("list", input.id + "-options");
    row.append(element("datalist", {id: input.id + "-options"}, ...options.map(value => element("option", {value}))));
  }
  if (hint) {
    input.setAttribute("aria-describedby", input.id + "-hint");
    row.append(element("p", {id: input.id + "-hint", className: "hint"}, hint));
  }
  return {name, input, row};
}
