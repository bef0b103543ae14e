// Tables. Short ones are sorted and filtered in place. Of long ones only the visible rows exist in the document.

const ROW = 30;
const FEW = 12;
const compare = (a, b) => {
  const [none, some] = [a === null || a === "", b === null || b === ""];
  if (none || some) return none - some;  // missing values come last in both directions
  return typeof a === "number" && typeof b === "number" ? a - b : String(a).localeCompare(String(b), "en", { numeric: true });
};
const signed = (a, b, way) => (a === null || a === "" || b === null || b === "") ? compare(a, b) : way * compare(a, b);

// Return the filter of a text such as "super seed=17 generalised<500": words that a row must contain, and bounds on
// columns, given by the beginning of their names. ``value(column, row)`` returns a cell; ``holding(word)`` returns
// the test whether a row contains a word.
function filterOf(text, names, value, holding) {
  const tests = [], unknown = [];
  for (const word of text.trim().split(/\s+/).filter(Boolean)) {
    const bound = word.match(/^([^<>=]+)(<=|>=|=|<|>)(.+)$/);
    const plain = name => name.toLowerCase().replaceAll(" ", "_");
    const column = bound ? names.findIndex(name => plain(name).startsWith(bound[1].toLowerCase())) : -1;
    if (column >= 0) {
      const wanted = Number(bound[3].replaceAll(",", ""));
      const test = { "<": (a, b) => a < b, ">": (a, b) => a > b, "<=": (a, b) => a <= b, ">=": (a, b) => a >= b, "=": (a, b) => a === b }[bound[2]];
      tests.push(row => {
        const cell = value(column, row);
        if (cell === null || cell === "") return false;
        return Number.isFinite(wanted) && typeof cell === "number" ? test(cell, wanted) : bound[2] === "=" && String(cell).toLowerCase() === bound[3].toLowerCase();
      });
    } else {
      if (bound) unknown.push(bound[1]);
      tests.push(holding(word.toLowerCase()));
    }
  }
  const keep = row => tests.every(test => test(row));
  keep.note = unknown.length ? `; no column ${unknown.join(", ")}` : "";
  return keep;
}

function copyButton(text, words = "copy") {
  const button = make("button", "copy", words);
  button.type = "button";
  button.title = "copy the command";
  button.dataset.copy = text;
  return button;
}

function sortHead(heads, onSort) {
  heads.forEach((head, i) => {
    const button = make("button", "sort", head.textContent);
    button.type = "button";
    button.title = "sort";
    head.replaceChildren(button);
    button.addEventListener("click", () => {
      const way = head.ariaSort === "ascending" ? -1 : 1;
      heads.forEach(other => other.removeAttribute("aria-sort"));
      head.ariaSort = way > 0 ? "ascending" : "descending";
      onSort(i, way);
    });
  });
}

function filterBox(label) {
  const input = make("input");
  input.type = "search";
  input.placeholder = "filter: words, seed=17, steps>500";
  input.ariaLabel = `filter ${label}`;
  return input;
}

function shortTable(table) {
  const body = table.tBodies[0], rows = [...body.rows];
  const heads = [...table.tHead.rows[0].cells], names = heads.map(head => head.textContent);
  const texts = rows.map(row => [...row.cells].map(cell => cell.textContent.trim()));
  const parsed = texts.map(row => row.map(text => {
    const value = Number.parseFloat(text.replaceAll(",", ""));
    return /^[-+]?[\d,.]/.test(text) && Number.isFinite(value) ? value : text;
  }));
  for (const row of rows) if (row.dataset.run) runRow(row, selection.numbers.get(row.dataset.run) ?? NOBODY);
  if (rows.length < 3) return;
  const first = rows.map((_, i) => i);
  sortHead(heads, (column, way) => {
    first.sort((a, b) => signed(parsed[a][column], parsed[b][column], way) || a - b);
    body.append(...first.map(i => rows[i]));
  });
  if (rows.length <= FEW) return;
  const bar = make("div", "toolbar"), input = filterBox(table.closest("details")?.querySelector("summary")?.textContent ?? "the table");
  const count = make("span", "count", `${rows.length} rows`);
  bar.append(input, count);
  table.closest(".scroll").before(bar);
  input.addEventListener("input", () => {
    const keep = filterOf(input.value, names, (column, i) => parsed[i][column], word => i => texts[i].some(text => text.toLowerCase().includes(word)));
    let left = 0;
    rows.forEach((row, i) => {
      row.hidden = !keep(i);
      left += !row.hidden;
    });
    count.textContent = `${left} of ${rows.length} rows${keep.note}`;
  });
}

function runRow(row, run) {
  if (run === NOBODY) return;
  row.dataset.number = run;
  row.tabIndex = 0;
  row.classList.add("run");
}

class LongTable {
  constructor(host, data, csv) {
    this.data = data;
    this.host = host;
    this.names = data.columns.map(column => column.name);
    this.order = Int32Array.from({ length: data.rows }, (_, i) => i);
    this.sorted = [-1, 1];
    this.build(csv);
    this.apply();
    selection.listeners.push(source => this.follow(source));
  }

  value(column, row) {
    const { words, values } = this.data.columns[column];
    return words ? words[values[row]] : values[row];
  }

  shownText(column, row) {
    const value = this.value(column, row);
    return value === null ? "" : typeof value === "number" ? number(value) : value;
  }

  // Test each distinct text of a column once: most columns have few.
  holding(word) {
    const columns = this.data.columns.filter(column => column.kind !== "number").map(({ words, values }) => {
      if (!words) return row => values[row].toLowerCase().includes(word);
      const hits = words.map(text => text.toLowerCase().includes(word));
      return row => hits[values[row]];
    });
    if (Number.isFinite(Number(word))) {
      const wanted = Number(word);
      columns.push(...this.data.columns.filter(column => column.kind === "number").map(({ values }) => row => values[row] === wanted));
    }
    return row => columns.some(test => test(row));
  }

  build(csv) {
    const bar = make("div", "toolbar");
    this.input = filterBox(this.host.ariaLabel);
    this.picks = [];
    bar.append(this.input);
    this.data.columns.forEach((column, c) => {
      if (!column.words || column.kind === "code" || column.words.length < 2 || column.words.length > FEW) return;
      const select = make("select");
      select.ariaLabel = column.name;
      select.append(new Option(`${column.name}: all`, ""), ...column.words.toSorted().map(word => new Option(word || "(none)", `=${word}`)));
      select.addEventListener("change", () => this.apply());
      this.picks.push([c, select]);
      bar.append(select);
    });
    this.count = bar.appendChild(make("span", "count"));
    const link = bar.appendChild(make("a", "", "csv"));
    link.href = csv;
    this.input.addEventListener("input", () => this.apply());

    this.view = make("div", "view");
    this.view.tabIndex = 0;
    const table = this.view.appendChild(make("table"));
    const group = table.appendChild(document.createElement("colgroup"));
    const head = table.createTHead().insertRow();
    this.host.replaceChildren(bar, this.view);
    const pen = document.createElement("canvas").getContext("2d");
    const { fontSize, fontFamily } = getComputedStyle(table);  // its `font` is empty where the style has tabular numbers
    pen.font = `${fontSize} ${fontFamily}`;
    let total = 0;
    this.data.columns.forEach((column, c) => {
      const cell = head.appendChild(make("th", column.kind === "number" ? "num" : "", column.name));
      cell.scope = "col";
      let longest = "";
      const rows = Math.max(1, Math.floor(this.data.rows / 500));
      for (let row = 0; row < this.data.rows; row += rows) {
        const text = this.shownText(c, row);
        if (text.length > longest.length) longest = text;
      }
      // fonts differ in width by a third, so a number per character would cut numbers off
      const plain = Math.max(...[`${column.name}  `, longest].map(words => pen.measureText(words).width));
      const code = (Math.max(column.name.length, longest.length) + 2) * 7.6;
      const width = column.kind === "code" ? Math.min(350, code) + 18 : Math.min(280, plain) + 22;
      group.appendChild(make("col")).style.width = `${width}px`;
      total += width;
    });
    table.style.width = `${total}px`;
    this.body = table.createTBody();
    sortHead([...head.cells], (column, way) => { this.sorted = [column, way]; this.apply(); });
    this.view.addEventListener("scroll", () => this.draw());
  }

  apply() {
    const keep = filterOf(this.input.value, this.names, (column, row) => this.value(column, row), word => this.holding(word));
    const picks = this.picks.filter(([, select]) => select.value).map(([c, select]) => [c, select.value.slice(1)]);
    const chosen = [];
    for (let row = 0; row < this.data.rows; row++) {
      if (picks.every(([c, word]) => this.value(c, row) === word) && keep(row)) chosen.push(row);
    }
    const [column, way] = this.sorted;
    if (column >= 0) chosen.sort((a, b) => signed(this.value(column, a), this.value(column, b), way) || a - b);
    this.order = chosen;
    this.count.textContent = `${number(chosen.length)} of ${number(this.data.rows)} rows${keep.note}`;
    this.view.scrollTop = 0;
    this.view.style.height = `${Math.min(14, Math.max(2, chosen.length)) * ROW + 48}px`;
    this.draw();
  }

  draw() {
    const from = Math.max(0, Math.floor(this.view.scrollTop / ROW) - 6);
    const to = Math.min(this.order.length, from + Math.ceil(this.view.clientHeight / ROW) + 14);
    const gap = rows => {
      const line = document.createElement("tr");
      line.className = "gap";
      line.style.height = `${rows * ROW}px`;
      return line;
    };
    const lines = [gap(from)];
    for (const row of this.order.slice(from, to)) {
      const line = make("tr");
      this.data.columns.forEach((column, c) => {
        const text = this.shownText(c, row), cell = line.appendChild(make("td", column.kind === "number" ? "num" : ""));
        if (column.kind === "code" && text.length > 20) cell.append(copyButton(text), make("code", "", text));
        else cell.append(column.kind === "code" ? make("code", "", text) : text);
        if (text.length > 30) cell.title = text;
      });
      if (this.data.runs) runRow(line, this.data.runs[row]);
      lines.push(line);
    }
    lines.push(gap(this.order.length - to));
    this.body.replaceChildren(...lines);
    markRows(this.body);
  }

  // Scroll this table to a run that was selected elsewhere.
  follow(source) {
    if (source === this || !this.data.runs || selection.selected === NOBODY || selection.hovered !== NOBODY && source !== undefined) return;
    const place = this.order.findIndex(row => this.data.runs[row] === selection.selected);
    if (place < 0) return;
    const top = place * ROW;
    if (top < this.view.scrollTop || top > this.view.scrollTop + this.view.clientHeight - 3 * ROW) this.view.scrollTop = Math.max(0, top - 4 * ROW);
  }

  rowOf(run) {
    const row = this.data.runs ? this.data.runs.indexOf(run) : -1;
    return row < 0 ? null : this.data.columns.map((column, c) => [column, this.shownText(c, row)]);
  }
}

function markRows(scope) {
  for (const row of scope.querySelectorAll("tr.run")) {
    const run = Number(row.dataset.number);
    row.classList.toggle("selected", run === selection.selected);
    row.classList.toggle("hovered", run === selection.hovered);
  }
}
