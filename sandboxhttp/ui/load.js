// Loads the page's files. Browsers give up requests when the machine's interfaces change, as they do with
// each container, and never ask again for a module that did not come: so each is fetched until it is there,
// and then taken from the browser's cache.
(async () => {
  const {version, files} = document.documentElement.dataset;
  const get = async name => {
    for (let wait = 100;; wait = Math.min(2 * wait, 3000)) {
      try {
        const answer = await fetch(version + "/" + name);
        await answer.arrayBuffer();
        if (answer.ok) return;
        if (answer.status === 404) return location.reload(); // it is another version by now
      } catch {}
      await new Promise(done => setTimeout(done, wait));
    }
  };
  await Promise.all(files.split(" ").map(get));
  await Promise.all(files.split(" ").filter(name => name.endsWith(".css")).map(name => new Promise(done => {
    const style = document.createElement("link");
    document.head.append(Object.assign(style, {rel: "stylesheet", href: version + "/" + name, onload: done, onerror: done}));
  })));
  await import(new URL(version + "/app.js", location.href));
})();
