// The dialog: the fields of an action, the plan for them, and its confirmation.

import {byId, element, focusOn, setText} from "./dom.js";

const dialog = byId("dialog"), form = dialog.querySelector("form"), confirm = byId("dialog-confirm"), trouble = byId("dialog-trouble");
let close = null; // ends the dialog that is open

// ask shows an action, and runs it when it is confirmed. It returns whether it has run.
//
//   title, verb  the heading, and the text of the button
//   text         a sentence below the heading
//   fields       see field; those with advanced are in a part that is closed at first
//   plan         returns the lines of the plan for the values of the fields
//   check        returns complaints about the values, by the names of the fields
//   run          does it, with the values and a function that shows its progress; if it fails, the dialog
//                remains open with the error
//   late         gets the error if the dialog was closed meanwhile
export function ask({title, verb, text = "", fields = [], plan, check = () => ({}), run, late, danger = false}) {
  close?.();
  const opener = document.activeElement;
  byId("dialog-title").textContent = title;
  byId("dialog-text").textContent = text;
  confirm.textContent = verb;
  confirm.classList.toggle("danger", danger);
  busy(false);
  const inputs = fields.map(field), advanced = inputs.filter(i => i.advanced);
  byId("fields").replaceChildren(...inputs.filter(i => !i.advanced).map(i => i.row));
  byId("advanced").hidden = advanced.length === 0;
  byId("advanced").open = false;
  byId("advanced-fields").replaceChildren(...advanced.map(i => i.row));
  const values = () => Object.fromEntries(inputs.map(i => [i.name, i.value()]));
  const showPlan = () => byId("plan-lines").replaceChildren(...(plan?.(values()) ?? []).map(line => element("li", {}, line)));
  byId("plan").hidden = !plan;
  showPlan();
  form.oninput = event => {
    inputs.find(i => i.input === event.target)?.complain("");
    showPlan();
  };
  return new Promise(done => {
    let open = true;
    close = ran => {
      if (!open) return;
      open = false;
      dialog.close();
      // The browser gives the focus back, but not to what the action has removed.
      if (document.activeElement === document.body || dialog.contains(document.activeElement)) focusOn(opener?.isConnected && opener !== document.body ? opener : null);
      done(ran === true);
    };
    dialog.onclose = () => { if (!dialog.open) close(); }; // by the key Escape
    byId("dialog-cancel").onclick = close;
    form.onsubmit = async event => {
      event.preventDefault();
      if (confirm.disabled || complain(inputs, check(values()))) return;
      const end = close;
      busy(true);
      try {
        await run(values(), progress => { if (open) showProgress(progress); });
        end(true);
      } catch (error) {
        if (!open) return late?.(error);
        busy(false);
        showError(inputs, error);
      }
    };
    form.scrollTop = byId("dialog-body").scrollTop = 0;
    dialog.showModal();
    (inputs[0]?.input ?? byId("dialog-cancel")).focus(); // not what confirms
  });
}

// complain shows complaints at their fields, and gives the first of these the focus. It returns whether there are any.
function complain(inputs, complaints) {
  let first = null;
  for (const i of inputs) {
    const text = complaints[i.name] || (i.input.validity.valid ? "" : i.input.validationMessage);
    i.complain(text);
    if (text) first ??= i;
  }
  if (first?.advanced) byId("advanced").open = true;
  first?.input.focus();
  return first !== null;
}

// showError shows each line of an error at the field that it names.
function showError(inputs, error) {
  const rest = [], complaints = {};
  for (const line of error.message.split("\n")) {
    const i = inputs.find(i => i.input.type !== "checkbox" && i.matches(line));
    const text = line.replace(/^sandbox: [a-z ]+( "[^"]*")?: (Invalid argument: )?/, ""); // the dialog says what was to be done
    if (i && error.status === 400) complaints[i.name] = complaints[i.name] ? complaints[i.name] + "; " + text : text;
    else rest.push(line);
  }
  complain(inputs, complaints);
  trouble.textContent = rest.join("\n");
}

// busy shows that the action runs.
function busy(on) {
  trouble.textContent = "";
  byId("dialog-busy").hidden = !on;
  if (on) showProgress({});
  if (on) byId("dialog-cancel").focus();
  confirm.disabled = on;
}

function showProgress({text = "In progress …", current = 0, total = 0}) {
  setText(byId("dialog-step"), text);
  const bar = byId("dialog-progress");
  if (total > 0) Object.assign(bar, {max: total, value: current});
  else bar.removeAttribute("value");
}

// field makes a field.
//
//   name, label, hint, advanced
//   of           the name in an error of the server, if it is another one
//   type         that of an input, or "textarea", or "select" with choices [[value, text]]
//   options      suggestions
//   further properties are those of the input
function field({name, label, hint, advanced = false, of = name, type = "text", choices = [], options, ...properties}) {
  const id = "field-" + name, own = {id, name, autocomplete: "off", spellcheck: false, ...properties};
  const input = type === "textarea" ? element("textarea", {rows: 3, ...own})
    : type === "select" ? element("select", own, ...choices.map(([value, text]) => element("option", {value, selected: value === properties.value}, text)))
      : element("input", {type, ...own});
  const problem = element("p", {id: id + "-problem", className: "problem", role: "alert"});
  const row = element("div", {className: "field" + (type === "checkbox" ? " check" : "")}, element("label", {htmlFor: id}, label), input);
  if (options) {
    input.setAttribute("list", id + "-options");
    row.append(element("datalist", {id: id + "-options"}, ...options.map(value => element("option", {value}))));
  }
  if (hint) row.append(element("p", {id: id + "-hint", className: "hint"}, hint));
  row.append(problem);
  input.setAttribute("aria-describedby", [hint && id + "-hint", id + "-problem"].filter(Boolean).join(" "));
  const words = new RegExp(`(^|[\\s:(])(${of})\\b`);
  return {
    name, input, row, advanced,
    value: () => type === "checkbox" ? input.checked : type === "number" ? (input.value === "" ? null : input.valueAsNumber) : type === "textarea" ? input.value : input.value.trim(),
    matches: line => words.test(line),
    complain(text) {
      setText(problem, text);
      if (text) input.setAttribute("aria-invalid", "true");
      else input.removeAttribute("aria-invalid");
    },
  };
}
