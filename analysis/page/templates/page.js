// The page: copying of commands, the bar of the selected run, and reloading.

const tables = [], charts = [];
const quoted = word => /^[\w./=+-]+$/.test(word) ? word : `'${word.replaceAll("'", `'"'"'`)}'`;

function said(button, word) {
  const before = button.textContent;
  if (before === word) return;
  button.textContent = word;
  setTimeout(() => { button.textContent = before; }, 1500);
}

function copying() {
  document.addEventListener("click", async event => {
    const button = event.target.closest("button.copy");
    if (!button) return;
    event.stopPropagation();
    const text = button.dataset.copy ?? button.parentElement.querySelector("code").textContent;
    try {
      await navigator.clipboard.writeText(text);
      said(button, "copied");
    } catch {
      const area = document.body.appendChild(make("textarea"));
      area.value = text;
      area.select();
      said(button, document.execCommand("copy") ? "copied" : "failed");
      area.remove();
    }
  });
}

// The bar of the selected run at the bottom of the window, with its numbers from the first table that has them.
function selectedLine() {
  const bar = byId("selected-run");
  const show = () => {
    const run = selection.selected;
    bar.hidden = run === NOBODY;
    document.body.classList.toggle("pinned", run !== NOBODY);
    if (run === NOBODY) return;
    const facts = make("span", "facts"), buttons = make("span", "buttons");
    const known = tables.map(table => table.rowOf(run)).find(Boolean) ?? rowOf(run) ?? [];
    for (const [column, text] of known) {
      if (!text || ["run", "run_id", "seed"].includes(column.name)) continue;
      if (column.kind === "code") continue;
      const fact = facts.appendChild(make("span", "", `${column.name} `));
      fact.append(make("b", "", text));
    }
    const curves = charts.filter(chart => chart.spec.curves);
    if (curves.length && !curves.some(chart => chart.layers.some(layer => layer.byRun?.has(run))))
      facts.append(make("span", "", "the page does not have its curve"));
    const words = `${selection.keys[run]} --store ${quoted(bar.dataset.store)}`;
    buttons.append(
      copyButton(`grok run --again ${words}`, "copy: train again"),
      copyButton(`grok show ${words}`, "copy: show"),
    );
    const clear = make("button", "", "clear");
    clear.type = "button";
    clear.addEventListener("click", () => selection.select(run));
    buttons.append(clear);
    bar.replaceChildren(make("b", "who", selection.labels[run]), make("code", "", selection.keys[run]), facts, buttons);
  };
  selection.listeners.push(show);
}

function rowOf(run) {
  const row = document.querySelector(`table tr[data-run="${selection.keys[run]}"]`);
  if (!row) return null;
  const heads = [...row.closest("table").tHead.rows[0].cells];
  return [...row.cells].map((cell, i) => [
    { name: heads[i].textContent, kind: cell.querySelector("code") ? "code" : "text" },
    (cell.querySelector("code") ?? cell).textContent.trim(),
  ]);
}

function rows() {
  const runOf = event => {
    const row = event.target.closest?.("tr.run");
    return row ? Number(row.dataset.number) : NOBODY;
  };
  document.addEventListener("pointerover", event => {
    const run = runOf(event);
    if (run !== NOBODY) selection.hover(run, "row");
    else if (!event.target.closest?.(".plot") && selection.hovered !== NOBODY) selection.hover(NOBODY, "row");
  });
  document.addEventListener("click", event => {
    const run = runOf(event);
    if (run !== NOBODY && !event.target.closest("button, a")) selection.select(run, "row");
  });
  document.addEventListener("keydown", event => {
    if (event.key === "Escape" && selection.selected !== NOBODY) selection.select(selection.selected);
    const run = event.key === "Enter" && event.target.matches?.("tr.run") ? runOf(event) : NOBODY;
    if (run !== NOBODY) selection.select(run, "row");
  });
  selection.listeners.push(() => markRows(document));
}

// While a sweep runs, the file is rewritten every few seconds. Reload it unless the user is active.
function reloading() {
  const seconds = Number(document.documentElement.dataset.reload);
  if (!seconds) return;
  let touched = 0;
  for (const kind of ["pointerdown", "keydown", "input"]) addEventListener(kind, () => { touched = performance.now(); }, true);
  setInterval(() => {
    if (document.visibilityState === "visible" && performance.now() - touched > 3000) location.reload();
  }, 1000 * seconds);
}

async function start() {
  copying();
  rows();
  selectedLine();
  reloading();
  const data = await unpack(byId("page-data").textContent);
  selection.names(data.runs);
  for (const table of document.querySelectorAll("table.data")) if (!table.closest("[data-table]")) shortTable(table);
  for (const host of document.querySelectorAll("[data-table]")) {
    tables.push(new LongTable(host, data.tables[host.dataset.table], host.dataset.csv));
  }
  for (const figure of document.querySelectorAll("figure[data-charts]")) {
    figure.classList.add("live");
    for (const spec of data.charts[figure.dataset.charts]) {
      const host = figure.querySelector(".charts").appendChild(make("div", "chart"));
      charts.push(new RunChart(host, spec));
      if (spec.curves && spec.curves[0] < spec.curves[1]) {
        figure.querySelector(".thinned").textContent = `The page has ${number(spec.curves[0])} of ${number(spec.curves[1])} curves. `;
      }
    }
  }
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => charts.forEach(chart => chart.plot.redraw(false)));
  const wanted = location.hash.match(/^#run=(\w+)$/)?.[1].slice(0, selection.keys[0]?.length);
  if (wanted && selection.numbers.has(wanted)) selection.select(selection.numbers.get(wanted));
  document.documentElement.dataset.ready = "yes";
}

start().catch(error => {
  // The static figures and tables remain visible.
  console.error(error);
});
