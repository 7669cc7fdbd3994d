// The files of a sandbox: directories, upload, download, and an editor for small texts.

import {act} from "./actions.js";
import {call, path, request, streamURL} from "./api.js";
import {button, element, empty, fail, focusOn, keyed, link, part, say, setText, time} from "./dom.js";
import {printable, size} from "./format.js";
import {menuButton} from "./menu.js";

const maxText = 256 << 10;
const icons = {directory: "▸", symlink: "↪", file: "·", other: "○"};
const join = (dir, name) => (dir === "/" ? "" : dir) + "/" + name;

export function files(node, s, rest) {
  const dir = rest.length ? "/" + rest.filter(Boolean).join("/") : s.settings.workdir ?? "/workspace";
  const address = where => "#/sandboxes/" + path(s.name, "files", ...where.split("/").filter(Boolean)) + (where === "/" ? "/" : "");
  // encoded is the path of an entry as a parameter. A name that is not UTF-8 is there with its bytes.
  const encoded = ({name, nameBase64}) => encodeURIComponent(join(dir, "")) +
    (nameBase64 ? Array.from(atob(nameBase64), c => "%" + c.charCodeAt(0).toString(16).padStart(2, "0")).join("") : encodeURIComponent(name));
  const content = f => path("sandboxes", s.id, "files") + "?path=" + encoded(f);
  const parts = dir.split("/").filter(Boolean);
  const crumbs = element("nav", {className: "crumbs path", "aria-label": "Directory"}, link("/", address("/")), ...parts.flatMap((name, i) => [
    link(name, address("/" + parts.slice(0, i + 1).join("/")), i === parts.length - 1 ? {"aria-current": "page"} : {}), ...(i < parts.length - 1 ? ["/"] : [])]));
  const picker = element("input", {type: "file", multiple: true, hidden: true, tabIndex: -1, id: "picker", "aria-label": "Files to upload"});
  const bar = element("div", {className: "bar"}, crumbs, button("Upload …", () => picker.click()), button("New file …", () => edit(null)), button("New directory …", makeDirectory), button("Refresh", () => show()), picker);
  const body = element("tbody", {id: "files"}), table = element("table", {"aria-label": "Files in " + dir, hidden: true}, element("thead", {}, element("tr", {},
    ...Object.entries({name: "Name", size: "Size", mode: "Permissions", when: "Changed", actions: "Actions"}).map(([className, text]) => element("th", {scope: "col", className}, text)))), body);
  const nothing = element("p", {className: "hint", role: "status"}, "Loading …"), editor = element("section", {className: "editor", hidden: true, "aria-label": "Editor"});
  node.append(bar, editor, element("div", {className: "wide drop files", role: "region", "aria-label": "Files", tabIndex: 0}, table), nothing);
  let ended = false;

  async function show() {
    try {
      const all = await call("GET", path("sandboxes", s.id, "files", "list") + "?path=" + encodeURIComponent(dir));
      if (ended) return;
      all.sort((a, b) => (b.type === "directory") - (a.type === "directory") || (a.name < b.name ? -1 : 1));
      keyed(body, all, f => (f.nameBase64 ?? "") + "/" + f.name + " " + f.type, make, update);
      table.hidden = all.length === 0;
      nothing.replaceChildren(...(all.length ? [] : [empty("This directory is empty", "Upload files, drop them here, or create one.")]));
    } catch (error) {
      table.hidden = true;
      setText(nothing, error.message);
    }
  }

  function make(f) {
    const name = printable(f.name);
    const open = f.type === "directory" ? f.nameBase64 ? name + "/" : link(name + "/", address(join(dir, f.name))) : f.type === "file" ? button(name, () => edit(f), {className: "link"}) : name;
    return element("tr", {}, element("th", {scope: "row"}, element("span", {className: "icon", "aria-hidden": "true"}, icons[f.type]), " ", open),
      element("td", {className: "size"}), element("td", {className: "mode"}), element("td", {className: "when"}),
      element("td", {className: "actions"}, menuButton(name, () => actions(f))));
  }

  const actions = f => [
    ...(f.type === "file" ? [{label: "Edit", act: () => edit(f)}, {label: "Download", act: () => download(f)}] : []),
    ...(f.type === "directory" && !f.nameBase64 ? [{label: "Open", act: () => { location.hash = address(join(dir, f.name)); }}] : []),
    ...(f.type === "directory" ? [{label: "Download as tar", act: () => downloadTree(f)}] : []),
    {label: "Rename …", act: () => rename(f)}, {label: "Delete …", act: () => remove(f), danger: true},
  ];

  // change makes a change of the directory after a confirmation, and shows what there is then.
  async function change(options) {
    await act(options);
    await show();
    if (document.activeElement === document.body) focusOn(null);
  }

  function makeDirectory() {
    return change({
      title: "New directory in " + dir, verb: "Create", fields: [{name: "name", label: "Name", required: true}],
      run: async ({name}) => {
        await call("POST", path("sandboxes", s.id, "files", "mkdir") + "?path=" + encoded({name}));
        return `Created ${name}.`;
      },
    });
  }

  function rename(f) {
    return change({
      title: "Rename " + printable(f.name), verb: "Rename", fields: [{name: "to", label: "New name", value: f.nameBase64 ? "" : f.name, required: true, hint: "A path that begins with / moves it to another directory."}],
      plan: ({to}) => [`${printable(join(dir, f.name))} becomes ${printable(to.startsWith("/") ? to : join(dir, to))}`, "A file of that name is replaced"],
      run: async ({to}) => {
        const target = to.startsWith("/") ? to : join(dir, to);
        await call("POST", path("sandboxes", s.id, "files", "rename") + "?path=" + encoded(f) + "&to=" + encodeURIComponent(target));
        return `Renamed ${f.name} to ${to}.`;
      },
    });
  }

  function remove(f) {
    const all = f.type === "directory";
    return change({
      title: "Delete " + printable(f.name), verb: "Delete", danger: true,
      plan: () => [`${printable(join(dir, f.name))} is deleted${all ? " with all files in it" : `, ${size(f.sizeBytes)}`}`],
      run: async () => {
        await call("DELETE", content(f) + (all ? "&recursive=true" : ""));
        return `Deleted ${f.name}.`;
      },
    });
  }

  // downloadTree lets the browser write the archive to its file as it comes: trees can be larger than memory.
  function downloadTree(f) {
    element("a", {href: streamURL(path("sandboxes", s.id, "archive") + "?path=" + encoded(f)), download: f.name + ".tar"}).click();
    say(`Downloading ${f.name} as ${f.name}.tar …`);
  }

  function update(row, f) {
    setText(part(row, "size"), f.type === "file" ? size(f.sizeBytes) : "");
    setText(part(row, "mode"), f.error ? "unknown" : `${f.mode} ${f.uid}:${f.gid}`);
    if (f.error) setText(part(row, "when"), "unknown");
    else if (part(row, "when").firstChild?.dateTime !== f.modifiedAt) part(row, "when").replaceChildren(time(f.modifiedAt));
  }

  async function download(f) {
    try {
      say(`Downloading ${f.name} …`);
      const blob = await (await request("GET", content(f))).blob(), href = URL.createObjectURL(blob);
      element("a", {href, download: f.name}).click();
      setTimeout(() => URL.revokeObjectURL(href), 60000);
      say(`Downloaded ${f.name}, ${size(blob.size)}.`);
    } catch (error) {
      fail(error);
    }
  }

  async function upload(all) {
    try {
      for (const file of all) {
        say(`Uploading ${file.name}, ${size(file.size)} …`);
        await request("PUT", content(file), {body: file, headers: {"Content-Type": "application/octet-stream"}});
      }
      say(`Uploaded ${[...all].map(f => f.name).join(", ")}.`);
    } catch (error) {
      fail(error);
    }
    await show();
  }

  // edit opens a text, or a new one. What the area can't show is put back when it is saved: the mark at the
  // beginning, and CR LF in place of LF. A text of which that does not make the same file is not opened.
  async function edit(f) {
    let text = "", mark = "", end = "\n";
    try {
      if (f && f.sizeBytes > maxText) throw new Error(`${f.name} has ${size(f.sizeBytes)}: texts of up to ${size(maxText)} can be edited here. Download it instead.`);
      if (f) text = new TextDecoder("utf-8", {fatal: true, ignoreBOM: true}).decode(await (await request("GET", content(f))).arrayBuffer());
    } catch (error) {
      return fail(error instanceof TypeError ? new Error(`${f.name} is no text. Download it instead.`) : error);
    }
    if (text.startsWith("\ufeff")) [mark, text] = ["\ufeff", text.slice(1)];
    if (text.includes("\r\n")) end = "\r\n";
    const name = element("input", {id: "file-name", "aria-label": "Name of the file", value: f?.name ?? "", placeholder: "notes.txt", disabled: Boolean(f), spellcheck: false, autocomplete: "off"});
    const area = element("textarea", {id: "file-text", "aria-label": "Text of " + (f ? printable(f.name) : "the new file"), value: text, rows: 16, spellcheck: false});
    const edited = () => mark + area.value.replaceAll("\n", end);
    if (edited() !== mark + text) return fail(new Error(`${f.name} has line ends of several kinds, which this editor would change. Download it instead.`));
    const had = document.activeElement;
    const close = () => {
      editor.hidden = true;
      editor.replaceChildren();
      (had?.isConnected ? had : document.querySelector("main h1")).focus();
    };
    const save = async () => {
      if (!f && !name.value.trim()) return name.focus();
      try {
        await request("PUT", content(f ?? {name: name.value.trim()}), {body: edited(), headers: {"Content-Type": "application/octet-stream"}});
        say(`Saved ${name.value.trim()}.`);
        close();
        await show();
      } catch (error) {
        fail(error);
      }
    };
    editor.replaceChildren(element("div", {className: "bar row"}, name, button("Save", save, {className: "primary"}), button("Close", close)), area);
    editor.hidden = false;
    (f ? area : name).focus();
  }

  picker.onchange = () => { upload([...picker.files]).finally(() => { picker.value = ""; }); };
  node.ondragover = event => event.preventDefault();
  node.ondrop = event => {
    event.preventDefault();
    if (event.dataTransfer.files.length) upload([...event.dataTransfer.files]);
  };
  show();
  return {
    update() {},
    end() {
      ended = true;
      node.ondragover = node.ondrop = null;
    },
  };
}
