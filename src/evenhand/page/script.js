"use strict";
(() => {
  const find = (selector, from = document) => from.querySelector(selector);
  const all = (selector, from = document) => [...from.querySelectorAll(selector)];
  const data = (id) => { const element = document.getElementById(id); return element ? JSON.parse(element.textContent) : null; };
  const root = document.documentElement;
  const panels = data("figures-data");  // by key: the variants, each with a figure and what is seen in it
  const darker = data("themes-data");  // colours on white -> on black
  const chosen = Object.fromEntries(Object.keys(panels).map((key) => [key, 0]));
  const hiddenMethods = new Set();
  const PRINT_WIDTH = 680, PRINT_HEIGHT = 780;  // that a sheet of A4 or letter paper has room for, in CSS pixels
  const boxes = all("input[data-method]");
  let printing = false;

  // ---- theme -------------------------------------------------------------------------------------------------------------------
  const remembered = {  // a page from disk may have no storage
    get() { try { return localStorage.getItem("evenhand-theme"); } catch { return null; } },
    set(theme) { try { localStorage.setItem("evenhand-theme", theme); } catch { /* then it is chosen again next time */ } },
  };
  const prefersDark = window.matchMedia("(prefers-color-scheme: dark)");
  const isDark = () => !printing && (root.dataset.theme ? root.dataset.theme === "dark" : prefersDark.matches);
  const themeButton = document.getElementById("theme");

  function showTheme() {
    themeButton.textContent = isDark() ? "Light colours" : "Dark colours";
    drawAll();
  }

  // ---- figures -----------------------------------------------------------------------------------------------------------------
  const rgb = (hex) => [1, 3, 5].map((i) => parseInt(hex.slice(i, i + 2), 16)).join(",");
  const faintDarker = Object.fromEntries(Object.entries(darker).map(([light, dark]) => [`rgba(${rgb(light)},`, `rgba(${rgb(dark)},`]));

  function inDark(colour) {
    if (darker[colour]) return darker[colour];
    const faint = Object.keys(faintDarker).find((start) => colour.startsWith(start));
    return faint ? faintDarker[faint] + colour.slice(faint.length) : colour;
  }

  const plotOf = (key) => document.getElementById(`plot-${key}`);

  function draw(key) {
    const place = plotOf(key);
    if (!place) return;
    const { figure, finding } = panels[key][chosen[key]];
    const dark = isDark(), width = printing ? PRINT_WIDTH : place.clientWidth;
    if (!width) return;  // in a part that is folded
    const shown = printing && figure.layout.height > PRINT_HEIGHT ? { ...figure, layout: { ...figure.layout, height: PRINT_HEIGHT } } : figure;
    drawFigure(place, shown, {
      width,
      ink: dark ? "#e6e8eb" : "#22262b",
      soft: dark ? "#a9b0ba" : "#565d67",
      grid: dark ? "#2c323b" : "#e4e6ea",
      paper: dark ? "#14171c" : "#ffffff",
      paint: dark ? inDark : (colour) => colour,
      kept: (method) => !hiddenMethods.has(method),
      toggle,
    });
    place.setAttribute("aria-label", finding);
    place.style.minHeight = `${find("svg", place).getAttribute("height")}px`;
  }

  const drawAll = () => Object.keys(panels).forEach(draw);

  for (const select of all("select[data-panel]")) {
    select.addEventListener("change", () => {
      const key = select.dataset.panel;
      chosen[key] = Number(select.value);
      for (const numbers of all(".numbers", document.getElementById(`figure-${key}`))) numbers.hidden = numbers.dataset.variant !== select.value;
      fitAll(document.getElementById(`figure-${key}`));
      draw(key);
    });
  }
  for (const button of all("button.save")) {
    button.addEventListener("click", () => {
      const drawn = find("svg", plotOf(button.dataset.panel)).cloneNode(true);
      drawn.style.background = getComputedStyle(document.body).backgroundColor;
      const file = URL.createObjectURL(new Blob([new XMLSerializer().serializeToString(drawn)], { type: "image/svg+xml" }));
      Object.assign(document.createElement("a"), { href: file, download: `${button.dataset.panel}.svg` }).click();
      setTimeout(() => URL.revokeObjectURL(file), 1000);
    });
  }

  // ---- tables that are too wide ------------------------------------------------------------------------------------------------
  const ROLES = { TABLE: "table", THEAD: "rowgroup", TBODY: "rowgroup", TR: "row", TD: "cell" };

  function fit(place) {  // a row becomes a list of its cells where its table has no room
    const table = find("table", place);
    table.classList.remove("stacked");
    if (printing || !place.clientWidth || place.scrollWidth <= place.clientWidth + 1) return;
    table.classList.add("stacked");
    const headings = [...table.tHead.rows[0].cells].map((cell) => cell.textContent);
    for (const part of [table, ...all("thead, tbody, tr, td", table)]) part.setAttribute("role", ROLES[part.tagName]);  // which stacking takes away
    for (const header of all("th", table)) header.setAttribute("role", header.scope === "row" ? "rowheader" : "columnheader");
    for (const row of table.tBodies[0].rows) [...row.cells].forEach((cell, i) => { cell.dataset.label = headings[i]; });
  }
  const fitAll = (from = document) => all(".wide", from).forEach(fit);
  document.addEventListener("toggle", (event) => { if (event.target.open && !event.target.classList.contains("side")) fitAll(event.target); }, true);

  // ---- methods -----------------------------------------------------------------------------------------------------------------
  function toggle(method) {
    const box = boxes.find((candidate) => candidate.dataset.method === method);
    box.checked = !box.checked;
    showMethods();
  }

  function showMethods() {
    hiddenMethods.clear();
    for (const box of boxes) if (!box.checked) hiddenMethods.add(box.dataset.method);
    for (const row of all("tr[data-method]")) row.hidden = hiddenMethods.has(row.dataset.method);
    drawAll();
    for (const ledger of ledgers) ledger.show(true);
  }
  for (const box of boxes) box.addEventListener("change", showMethods);
  document.getElementById("show-all")?.addEventListener("click", () => {
    for (const box of boxes) box.checked = true;
    showMethods();
  });

  // ---- sorting -----------------------------------------------------------------------------------------------------------------
  function mark(header, direction) {
    for (const other of header.parentElement.children) other.removeAttribute("aria-sort");
    header.setAttribute("aria-sort", direction);
  }
  const next = (header, first) => (header.getAttribute("aria-sort") === first ? (first === "descending" ? "ascending" : "descending") : first);

  function ordered(a, b, sign) {  // what is not there comes last
    if (a === "" || a === null) return b === "" || b === null ? 0 : 1;
    if (b === "" || b === null) return -1;
    return sign * (typeof a === "number" ? a - b : a.localeCompare(b, undefined, { numeric: true }));
  }

  for (const table of all("table.sortable")) {
    const body = table.tBodies[0];
    [...table.tHead.rows[0].cells].forEach((header, column) => {
      find("button", header).addEventListener("click", () => {
        const direction = next(header, column ? "descending" : "ascending");
        mark(header, direction);
        const value = (row) => { const raw = row.cells[column].dataset.value; return raw === "" || !column ? raw : Number(raw); };
        const rows = [...body.rows].sort((one, two) => ordered(value(one), value(two), direction === "ascending" ? 1 : -1));
        body.append(...rows);
      });
    });
  }

  // ---- ledger ------------------------------------------------------------------------------------------------------------------
  const ledgers = all(".ledger").map((place) => makeLedger(place, data(`${place.dataset.prefix}ledger-data`)));

  function makeLedger(place, content) {
    const PAGE = 25;
    const { columns, digits } = content;
    const table = find("table", place), state = find(".state", place);
    const [back, on, whole] = ["ledger-back", "ledger-on", "ledger-all"].map((id) => document.getElementById(place.dataset.prefix + id));
    const filters = all("select[data-filter]", place), name = find("input[type=search]", place);
    const keys = [...table.tHead.rows[0].cells].map((header) => header.dataset.key);
    const total = columns.samples.length;
    const at = (key, i) => (columns[key].codes ? columns[key].texts[columns[key].codes[i]] : columns[key][i]);
    const signed = (value) => { const size = Math.abs(value).toFixed(digits); return (Number(size) === 0 ? "" : value > 0 ? "+" : "\u2212") + size; };
    const VERDICTS = { harmed: "\u25bc harmed", gains: "\u25b2 gains", unclear: "unclear", few: "few samples" };
    const rank = Object.fromEntries(Object.keys(VERDICTS).map((verdict, place) => [verdict, place]));
    const sortedBy = (key, i) => (key === "verdict" ? rank[at(key, i)] : at(key, i));
    let order = { key: "verdict", sign: 1 }, page = 0, everything = false;

    const write = {
      merit: (i) => number(at("merit", i)),
      reference: (i) => number(at("reference", i)),
      adjusted: (i) => { const p = at("adjusted", i); return p === null ? "\u2013" : p < 0.001 ? "< 0.001" : p.toFixed(3); },
    };
    const number = (value) => (value === null ? "\u2013" : value.toFixed(digits));

    function cell(key, i) {
      const made = document.createElement(key === "name" ? "th" : "td");
      if (key === "name") made.scope = "row";
      if (key === "gain") {
        const gain = at("gain", i), low = at("low", i), high = at("high", i);
        made.textContent = gain === null ? "\u2013" : signed(gain);
        if (low !== null && high !== null) made.append(Object.assign(document.createElement("small"), { textContent: ` [${signed(low)}, ${signed(high)}]` }));
      } else if (key === "verdict") {
        made.className = `words verdict ${at(key, i)}`;
        made.textContent = VERDICTS[at(key, i)];
      } else {
        const found = write[key] ? write[key](i) : at(key, i);
        made.textContent = found;
        if (key === "name" && at("by", i) !== "client") made.append(Object.assign(document.createElement("small"), { className: "role", textContent: at("by", i) }));
        if (["team", "method", "against"].includes(key)) made.className = "words";
      }
      return made;
    }

    function kept() {
      const wanted = filters.filter((filter) => filter.value).map((filter) => [filter.dataset.filter, filter.value]);
      const part = name.value.trim().toLowerCase();
      const found = [];
      for (let i = 0; i < total; i += 1) {
        if (hiddenMethods.has(at("method", i))) continue;
        if (wanted.some(([key, value]) => at(key, i) !== value)) continue;
        if (part && !at("name", i).toLowerCase().includes(part)) continue;
        found.push(i);
      }
      const { key, sign } = order;  // among equals, those who lose most come first
      return found.sort((one, two) => ordered(sortedBy(key, one), sortedBy(key, two), sign) || ordered(at("gain", one), at("gain", two), 1) || one - two);
    }

    function show(fromStart) {
      if (fromStart) page = 0;
      const complete = everything || printing, found = kept(), from = complete ? 0 : page * PAGE, to = complete ? found.length : Math.min(found.length, from + PAGE);
      table.tBodies[0].replaceChildren(...found.slice(from, to).map((i) => {
        const row = document.createElement("tr");
        row.append(...keys.map((key) => cell(key, i)));
        return row;
      }));
      const count = (verdict) => found.filter((i) => at("verdict", i) === verdict).length;
      const shown = found.length ? `${(from + 1).toLocaleString("en")} to ${to.toLocaleString("en")} of ${found.length.toLocaleString("en")} entries` : "No entries";
      state.textContent = `${shown}: ${count("gains")} gain, ${count("harmed")} harmed, ${count("unclear")} unclear${count("few") ? `, ${count("few")} with few samples` : ""}.`;
      back.disabled = everything || page === 0;
      on.disabled = everything || to >= found.length;
      whole.textContent = everything ? "Show pages" : "Show all";
      whole.disabled = !everything && found.length <= PAGE;
      fit(find(".wide", place));
    }

    [...table.tHead.rows[0].cells].forEach((header) => {
      find("button", header).addEventListener("click", () => {
        const direction = next(header, "ascending");
        mark(header, direction);
        order = { key: header.dataset.key, sign: direction === "ascending" ? 1 : -1 };
        show(true);
      });
    });
    mark([...table.tHead.rows[0].cells].find((header) => header.dataset.key === "verdict"), "ascending");
    for (const filter of filters) filter.addEventListener("change", () => show(true));
    name.addEventListener("input", () => show(true));
    back.addEventListener("click", () => { page -= 1; show(false); });
    on.addEventListener("click", () => { page += 1; show(false); });
    whole.addEventListener("click", () => { everything = !everything; show(true); });
    show(true);
    return { show };
  }

  // ---- page --------------------------------------------------------------------------------------------------------------------
  themeButton.addEventListener("click", () => {
    root.dataset.theme = isDark() ? "light" : "dark";
    remembered.set(root.dataset.theme);
    showTheme();
  });
  prefersDark.addEventListener("change", showTheme);

  const side = find(".side"), wide = window.matchMedia("(min-width: 1020px)");
  const fold = () => { side.open = wide.matches; };
  wide.addEventListener("change", fold);
  for (const link of all("a", side)) link.addEventListener("click", () => { if (!wide.matches) side.open = false; });

  const links = new Map(all("nav a").map((link) => [link.hash.slice(1), link]));
  const watcher = new IntersectionObserver((entries) => {
    for (const entry of entries) {
      if (!entry.isIntersecting) continue;
      for (const link of links.values()) link.removeAttribute("aria-current");
      links.get(entry.target.id)?.setAttribute("aria-current", "location");
    }
  }, { rootMargin: "-20% 0px -70% 0px" });
  for (const section of all("main > section")) watcher.observe(section);

  let folded = [];
  function forPrint(begins) {
    if (begins === printing) return;
    printing = begins;
    if (begins) {
      folded = all("main details:not([open])");
      for (const part of folded) part.open = true;
    } else {
      for (const part of folded) part.open = false;
    }
    for (const ledger of ledgers) ledger.show(!begins);
    drawAll();
    fitAll();
  }
  window.addEventListener("beforeprint", () => forPrint(true));
  window.addEventListener("afterprint", () => forPrint(false));
  window.matchMedia("print").addEventListener("change", (event) => forPrint(event.matches));

  let lastWidth = 0, waiting = 0;
  new ResizeObserver(() => {
    const width = find("main").clientWidth;
    if (width === lastWidth || printing) return;
    lastWidth = width;
    clearTimeout(waiting);
    waiting = setTimeout(() => { drawAll(); fitAll(); }, 80);
  }).observe(find("main"));

  const theme = remembered.get();
  if (theme === "light" || theme === "dark") root.dataset.theme = theme;
  fold();
  lastWidth = find("main").clientWidth;
  showTheme();
  fitAll();
})();
