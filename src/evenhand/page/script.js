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
  const ABOVE_AND_BELOW = 130;  // what of a figure's height is not for its rows
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

  function recoloured(node, key) {
    if (typeof node === "string") return /color$/i.test(key) || key === "colorscale" ? inDark(node) : node;
    if (Array.isArray(node)) return key === "colorscale" ? node.map((part) => recoloured(part, key)) : node;
    if (node === null || typeof node !== "object") return node;
    return Object.fromEntries(Object.entries(node).map(([name, part]) => [name, recoloured(part, name)]));
  }

  function themed(figure) {
    const dark = isDark();
    const ink = dark ? "#e6e8eb" : "#22262b", grid = dark ? "#2c323b" : "#e4e6ea", paper = "rgba(0,0,0,0)";
    const recolour = (node) => (dark ? recoloured(node, "") : structuredClone(node));
    const traces = figure.data.map(recolour), layout = recolour(figure.layout);
    const base = layout.template.layout;
    Object.assign(base, { paper_bgcolor: paper, plot_bgcolor: paper });
    base.font.color = ink;
    base.hoverlabel = { align: "left", bgcolor: dark ? "#262b33" : "#ffffff", bordercolor: dark ? "#5a626e" : "#b8bec7", font: { color: ink } };
    for (const axis of ["xaxis", "yaxis"]) base[axis].gridcolor = grid;
    return { traces, layout };
  }

  const plotOf = (key) => document.getElementById(`plot-${key}`);

  function draw(key) {
    const place = plotOf(key);
    if (!place) return null;
    const { figure, finding } = panels[key][chosen[key]];
    const { traces, layout } = themed(figure);
    const width = printing ? PRINT_WIDTH : place.clientWidth, narrow = width < 560;
    for (const trace of traces) {
      const method = trace.meta && trace.meta.method;
      trace.visible = !(method && hiddenMethods.has(method) && key !== "weights");
      if (trace.type === "heatmap" && narrow) Object.assign(trace.colorbar, { orientation: "h", y: 1.02, yanchor: "bottom", x: 0.5, title: { text: "times an equal share", side: "top" } });
    }
    if (key === "verdicts") keepMethods(traces);
    delete layout.title;
    delete layout.width;
    layout.autosize = false;
    layout.width = width;
    layout.margin = { l: 8, r: 12, t: 24, b: 40 };
    if (narrow) {
      layout.template.layout.font.size = 11;
      layout.legend = { ...layout.legend, font: { size: 11 } };
    }
    if (layout.yaxis && layout.yaxis.type === "category" && key !== "weights") {  // rows, or markers in a row, are fewer
      layout.height = ABOVE_AND_BELOW + (layout.height - ABOVE_AND_BELOW) * Math.max(1, boxes.length - hiddenMethods.size) / boxes.length;
    }
    if (printing) layout.height = Math.min(layout.height, PRINT_HEIGHT);
    showKeys(place, traces, layout, narrow && !printing);
    wrapTitles(layout, traces, width);
    if (window.matchMedia("(pointer: coarse)").matches) layout.dragmode = false;  // a finger scrolls the page
    place.setAttribute("aria-label", finding);
    place.style.minHeight = `${layout.height}px`;
    const config = { displayModeBar: false, responsive: false, showTips: false };
    return window.Plotly.react(place, traces, layout, config).then(() => {
      if (place.dataset.listening) return;
      place.dataset.listening = "yes";
      place.on("plotly_legendclick", (event) => {
        const method = event.data[event.curveNumber].meta && event.data[event.curveNumber].meta.method;
        if (!method) return true;
        toggle(method);
        return false;
      });
      place.on("plotly_legenddoubleclick", () => false);
    });
  }

  function showKeys(place, traces, layout, wanted) {  // a legend in the figure would take too much of a narrow one
    const old = find(".keys", place.parentElement);
    if (old) old.remove();
    const named = traces.some((trace) => trace.type === "scatter" && trace.meta && trace.showlegend !== false);
    if (!wanted || !named || layout.showlegend === false) return;
    layout.showlegend = false;
    const keys = Object.assign(document.createElement("div"), { className: "keys", ariaHidden: "true" });
    for (const box of boxes) {
      if (!box.checked) continue;
      const key = document.createElement("span");
      key.append(find("svg", box.parentElement).cloneNode(true), box.dataset.method);
      keys.append(key);
    }
    place.before(keys);
  }

  function wrapTitles(layout, traces, width) {  // in lines that fit beside the figure, with about 7 pixels for a letter
    const rows = layout.yaxis && layout.yaxis.type === "category" ? traces.flatMap((trace) => trace.y) : [];
    const besides = Math.max(0, ...rows.map((row) => decoded(String(row)).length)) * 6.5;
    for (const [name, axis] of Object.entries(layout)) {
      if (!/^[xy]axis/.test(name) || !axis.title || !axis.title.text) continue;
      const across = name.startsWith("x"), part = axis.domain ? axis.domain[1] - axis.domain[0] : 1;
      const most = (across ? 0.8 * width - besides : 0.75 * part * layout.height) / 7;
      const lines = [""];
      for (const word of axis.title.text.split(" ")) {
        if (lines.at(-1) && lines.at(-1).length + word.length > most) lines.push("");
        lines.push(`${lines.pop()} ${word}`.trim());
      }
      axis.title.text = lines.join("<br>");
    }
  }

  function keepMethods(traces) {  // bars belong to several methods
    const names = new Map(all("[data-method]", find(".chooser")).map((box) => [box.parentElement.textContent, box.dataset.method]));
    for (const trace of traces) {
      const kept = trace.y.map((shown) => !hiddenMethods.has(names.get(decoded(shown))));
      for (const column of ["x", "y", "text"]) trace[column] = trace[column].filter((_, i) => kept[i]);
    }
  }

  function decoded(markup) {
    const holder = document.createElement("textarea");
    holder.innerHTML = markup;
    return holder.value;
  }

  const drawAll = () => Promise.all(Object.keys(panels).map(draw));

  for (const select of all("select[data-panel]")) {
    select.addEventListener("change", () => {
      const key = select.dataset.panel;
      chosen[key] = Number(select.value);
      for (const numbers of all(".numbers", document.getElementById(`figure-${key}`))) numbers.hidden = numbers.dataset.variant !== select.value;
      draw(key);
    });
  }
  for (const button of all("button.save")) {
    button.addEventListener("click", () => {
      const place = plotOf(button.dataset.panel);
      const paper = getComputedStyle(document.body).backgroundColor;
      const picture = { data: place.data, layout: { ...place.layout, paper_bgcolor: paper } };
      window.Plotly.downloadImage(picture, { format: "svg", filename: button.dataset.panel, width: place.clientWidth, height: place.layout.height });
    });
  }

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
    if (ledger) ledger.show(true);
  }
  for (const box of boxes) box.addEventListener("change", showMethods);
  document.getElementById("show-all").addEventListener("click", () => {
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
  const ledger = makeLedger(data("ledger-data"));

  function makeLedger(content) {
    if (!content) return null;
    const PAGE = 25;
    const { columns, digits } = content;
    const table = document.getElementById("ledger-table"), state = document.getElementById("ledger-state");
    const [back, on, whole] = ["ledger-back", "ledger-on", "ledger-all"].map((id) => document.getElementById(id));
    const filters = all("select[data-filter]"), name = document.getElementById("ledger-name");
    const keys = [...table.tHead.rows[0].cells].map((header) => header.dataset.key);
    const total = columns.samples.length;
    const at = (key, i) => (columns[key].codes ? columns[key].texts[columns[key].codes[i]] : columns[key][i]);
    const signed = (value) => (value > 0 ? "+" : value < 0 ? "\u2212" : "") + Math.abs(value).toFixed(digits);
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
      const found = kept(), from = everything ? 0 : page * PAGE, to = everything ? found.length : Math.min(found.length, from + PAGE);
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
      links.get(entry.target.id).setAttribute("aria-current", "location");
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
    drawAll();
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
    waiting = setTimeout(drawAll, 80);
  }).observe(find("main"));

  const theme = remembered.get();
  if (theme === "light" || theme === "dark") root.dataset.theme = theme;
  fold();
  lastWidth = find("main").clientWidth;
  showTheme();
})();
