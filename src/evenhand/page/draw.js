"use strict";
// Draws figures as SVG: the part of plotly's figure format that evenhand.page.figures uses, which is
// scatter, bar and heatmap on linear axes. The page would be 5 MB with plotly itself.
const drawFigure = (() => {
  const NS = "http://www.w3.org/2000/svg";
  const FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', Arial, sans-serif";
  const DASHES = { dash: "8 5", dot: "2 4", dashdot: "8 4 2 4", longdash: "13 5", longdashdot: "13 5 2 5" };
  const SYMBOLS = {  // paths around 0, about 2 r wide
    circle: (r) => `M${-r} 0a${r} ${r} 0 1 0 ${2 * r} 0a${r} ${r} 0 1 0 ${-2 * r} 0z`,
    square: (r) => `M${-r} ${-r}h${2 * r}v${2 * r}h${-2 * r}z`,
    diamond: (r) => `M0 ${-1.3 * r}L${1.3 * r} 0 0 ${1.3 * r} ${-1.3 * r} 0z`,
    "triangle-up": (r) => `M0 ${-1.2 * r}L${1.2 * r} ${r}H${-1.2 * r}z`,
    "triangle-down": (r) => `M0 ${1.2 * r}L${1.2 * r} ${-r}H${-1.2 * r}z`,
    cross: (r) => `M${-r / 3} ${-1.2 * r}h${r / 1.5}v${r * 0.87}h${r * 0.87}v${r / 1.5}h${-r * 0.87}v${r * 0.87}h${-r / 1.5}v${-r * 0.87}h${-r * 0.87}v${-r / 1.5}h${r * 0.87}z`,
    x: (r) => `M0 ${-0.45 * r}L${0.7 * r} ${-1.1 * r} ${1.1 * r} ${-0.7 * r} ${0.45 * r} 0 ${1.1 * r} ${0.7 * r} ${0.7 * r} ${1.1 * r} 0 ${0.45 * r} ${-0.7 * r} ${1.1 * r} ${-1.1 * r} ${0.7 * r} ${-0.45 * r} 0 ${-1.1 * r} ${-0.7 * r} ${-0.7 * r} ${-1.1 * r}z`,
    star: (r) => `M${[...Array(10).keys()].map((i) => { const far = r * (i % 2 ? 0.55 : 1.35), angle = (i * Math.PI) / 5; return `${(far * Math.sin(angle)).toFixed(2)} ${(-far * Math.cos(angle)).toFixed(2)}`; }).join("L")}z`,
  };
  const canvas = document.createElement("canvas").getContext("2d");

  // ---- words and numbers -------------------------------------------------------------------------------------------------------
  function widthOf(words, size) { canvas.font = `${size}px ${FONT}`; return canvas.measureText(words).width; }
  const decoded = (markup) => String(markup).replace(/&lt;/g, "<").replace(/&gt;/g, ">").replace(/&amp;/g, "&");
  function cut(words, size, most) {
    if (widthOf(words, size) <= most) return words;
    let end = words.length;
    while (end > 1 && widthOf(`${words.slice(0, end)}…`, size) > most) end -= 1;
    return `${words.slice(0, end)}…`;
  }
  function wrapped(words, size, most) {
    const lines = [""];
    for (const word of words.split(" ")) {
      if (lines.at(-1) && widthOf(`${lines.at(-1)} ${word}`, size) > most) lines.push("");
      lines.push(`${lines.pop()} ${word}`.trim());
    }
    return lines;
  }
  function written(value, format = "") {  // of d3's formats: "", "d", "+", ".1f", "+.1f"
    const digits = /\.(\d)f/.exec(format);
    const size = Math.abs(value).toLocaleString("en", digits ? { minimumFractionDigits: Number(digits[1]), maximumFractionDigits: Number(digits[1]) } : { maximumFractionDigits: 6 });
    const zero = !/[1-9]/.test(size);
    return (zero ? "" : value < 0 ? "\u2212" : format.startsWith("+") ? "+" : "") + size;
  }
  const filled = (template, values) => decoded(template.split("<extra>")[0].replace(/%\{(\w+)(?::([^}]*))?\}/g, (_, name, format) => (typeof values[name] === "number" ? written(values[name], format) : values[name] ?? "")));

  // ---- axes --------------------------------------------------------------------------------------------------------------------
  function ticks(low, high, most, format = "") {
    const span = high - low, whole = format.endsWith("d");
    const rough = 10 ** Math.floor(Math.log10(span / Math.max(1, most)));
    let step = [1, 2, 5, 10].map((factor) => factor * rough).find((size) => span / size <= Math.max(1, most)) ?? 10 * rough;
    if (whole) step = Math.max(1, Math.round(step));
    const digits = Math.max(0, -Math.floor(Math.log10(step) + 1e-9));
    const found = [];
    for (let k = Math.ceil(low / step - 1e-9); k * step <= high + 1e-9 * span; k += 1) found.push([k * step, written(k * step, `${format.startsWith("+") ? "+" : ""}.${digits}f`)]);
    return found;
  }
  const among = (list, i) => (Array.isArray(list) ? list[i] : list);

  function ends(trace, across) {  // all numbers of a trace that its axis has to have room for
    const values = trace[across ? "x" : "y"] ?? [], errors = trace[across ? "error_x" : "error_y"];
    if (trace.type === "bar") return across ? values.flatMap((value, i) => [trace.base[i], trace.base[i] + value]) : values;
    if (trace.type === "heatmap") return across ? [...edges(values)] : [];
    return values.flatMap((value, i) => (value === null ? [] : errors && errors.array[i] !== null ? [value - errors.arrayminus[i], value, value + errors.array[i]] : [value]));
  }
  function edges(values) {  // of the cells around values
    const middle = values.slice(1).map((value, i) => (value + values[i]) / 2);
    const first = values.length > 1 ? values[0] - (middle[0] - values[0]) : values[0] - 0.5, last = values.length > 1 ? values.at(-1) + (values.at(-1) - middle.at(-1)) : values[0] + 0.5;
    return [first, ...middle, last];
  }
  function range(axis, traces, across) {
    if (axis.range) return axis.range;
    const found = traces.flatMap((trace) => ends(trace, across)).filter((value) => value !== null);
    let low = Math.min(...found), high = Math.max(...found);
    if (!found.length) [low, high] = [0, 1];
    if (axis.rangemode === "tozero" || axis.zeroline) [low, high] = [Math.min(0, low), Math.max(0, high)];
    if (high - low < 1e-9) [low, high] = [low - 1, high + 1];
    const tight = traces.every((trace) => trace.type === "heatmap" || (trace.mode ?? "").startsWith("lines")) && across;
    const room = tight ? 0 : 0.05 * (high - low), toZero = axis.rangemode === "tozero";
    return [toZero && low === 0 ? 0 : low - room, high + room];
  }

  // ---- the figure --------------------------------------------------------------------------------------------------------------
  /** Draw a figure into an element. settings: width, ink, soft, grid, paper, paint(colour), kept(method), toggle(method). */
  return function draw(place, figure, settings) {
    const { width, ink, soft, grid, paint, kept, toggle } = settings;
    const size = width < 560 ? 11 : 13;
    const layout = structuredClone(figure.layout);
    const traces = figure.data.map((trace) => only(trace, kept)).filter((trace) => !(trace.meta && trace.meta.method) || kept(trace.meta.method));
    const rows = layout.meta && layout.meta.rows ? compressed(layout, traces, layout.meta.rows, kept) : null;
    const height = rows ? layout.height - layout.meta.step * rows : layout.height;
    const svg = document.createElementNS(NS, "svg"), hovers = [];
    function make(tag, attributes, parent = svg, words = null) {
      const made = document.createElementNS(NS, tag);
      for (const [name, value] of Object.entries(attributes)) if (value !== null && value !== undefined) made.setAttribute(name, value);
      if (words !== null) made.textContent = words;
      parent.append(made);
      return made;
    }
    for (const [name, value] of Object.entries({ width, height, viewBox: `0 0 ${width} ${height}`, "font-family": FONT, "font-size": size, fill: ink, "aria-hidden": "true", xmlns: NS })) svg.setAttribute(name, value);

    const axes = {}, cells = new Map();
    for (const trace of traces.length ? traces : [{}]) {
      const names = [trace.xaxis ?? "x", trace.yaxis ?? "y"], key = names.join();
      if (!cells.has(key)) cells.set(key, { names, traces: [] });
      if (trace.type) cells.get(key).traces.push(trace);
    }
    for (const { names } of cells.values()) for (const name of names) axes[name] ??= { ...(layout[`${name[0]}axis${name.slice(1)}`] ?? {}), across: name[0] === "x" };
    const shared = Object.values(axes).some((axis) => axis.matches);  // the horizontal axes are one
    for (const [name, axis] of Object.entries(axes)) axis.ends = range(axis, traces.filter((trace) => (axis.across ? shared || (trace.xaxis ?? "x") === name : (trace.yaxis ?? "y") === name)), axis.across);

    const top = legend() + 6;
    const titles = Object.values(axes).filter((axis) => !axis.across && axis.title && axis.title.text);
    const line = size * 1.3, verticals = Object.values(axes).filter((axis) => !axis.across);
    const named = (axis) => (axis.tickvals ? axis.tickvals.map((value, i) => [value, decoded(axis.ticktext[i])]) : null);
    const most = 0.42 * width;
    const tickWidth = Math.min(most, Math.max(0, ...verticals.flatMap((axis) => (named(axis) ?? [6, height / 45].flatMap((count) => ticks(Math.min(...axis.ends), Math.max(...axis.ends), count, axis.tickformat))).map(([, words]) => widthOf(words, size)))));
    const domains = verticals.map((axis) => axis.domain ?? [0, 1]), tallest = Math.max(...domains.map(([low, high]) => high - low));
    const titleLines = Math.max(0, ...titles.map((axis) => wrapped(decoded(axis.title.text), size, 0.9 * tallest * (height - top - 50)).length));
    const left = tickWidth + 10 + titleLines * line + (titleLines ? 6 : 0), right = width - 14;
    const bottomAxis = Object.values(axes).filter((axis) => axis.across && axis.title && axis.title.text)[0];
    const bottomLines = bottomAxis ? wrapped(decoded(bottomAxis.title.text), size, right - left) : [];
    const bottom = height - line - 14 - bottomLines.length * line;
    const scale = (axis) => {
      const [low, high] = axis.ends, [from, to] = axis.domain ?? [0, 1];
      const [a, b] = axis.across ? [left, right] : [bottom - from * (bottom - top), bottom - to * (bottom - top)];
      return (value) => a + ((value - low) / (high - low)) * (b - a);
    };
    for (const axis of Object.values(axes)) axis.at = scale(axis);

    for (const { names, traces: own } of cells.values()) {
      const [x, y] = names.map((name) => axes[name]);
      drawAxes(x, y);
      const clip = `clip-${place.id}-${names.join("")}`;
      const [high, low] = [y.at(y.ends[1]), y.at(y.ends[0])];
      make("rect", { x: left - 7, y: Math.min(low, high) - 7, width: right - left + 14, height: Math.abs(low - high) + 14 }, make("clipPath", { id: clip }, make("defs", {})));
      const area = make("g", { "clip-path": `url(#${clip})` });
      for (const trace of own) ({ bar: bars, heatmap: heat }[trace.type] ?? points)(trace, x.at, y.at, area);
    }
    for (const [i, words] of bottomLines.entries()) make("text", { x: (left + right) / 2, y: bottom + 2 * line + 6 + i * line, "text-anchor": "middle", fill: soft, class: "xtitle" }, svg, words);
    place.replaceChildren(svg);
    hover(place, svg, hovers, width);

    function drawAxes(x, y) {
      const [low, high] = [y.at(y.ends[0]), y.at(y.ends[1])].sort((one, two) => one - two);
      for (const shape of layout.shapes ?? []) make("rect", { x: x.at(shape.x0), y: low, width: x.at(shape.x1) - x.at(shape.x0), height: high - low, fill: shape.fillcolor, opacity: shape.opacity });
      for (const note of layout.annotations ?? []) make("text", { x: x.at(note.x) + 3, y: low + line, fill: soft }, svg, note.text);
      const wide = Math.max(...ticks(...x.ends, 5, x.tickformat).map(([, words]) => widthOf(words, size)), 20);
      const across = named(x) ?? ticks(Math.min(...x.ends), Math.max(...x.ends), Math.min(12, (right - left) / (wide + 34)), x.tickformat);
      const room = (right - left) / Math.max(1, across.length) - 6;
      for (const [value, words] of across) {
        make("path", { d: `M${x.at(value)} ${low}V${high}`, stroke: value === 0 && x.zeroline ? soft : grid, "stroke-width": value === 0 && x.zeroline ? 1.5 : 1 });
        if (x.showticklabels !== false) make("text", { x: x.at(value), y: high + line + 2, "text-anchor": "middle", class: "tick" }, svg, named(x) ? cut(words, size, room) : words);
      }
      const up = named(y) ?? ticks(Math.min(...y.ends), Math.max(...y.ends), Math.max(2, (high - low) / 45), y.tickformat);
      for (const [value, words] of up) {
        if (y.showgrid !== false) make("path", { d: `M${left} ${y.at(value)}H${right}`, stroke: value === 0 && y.zeroline ? soft : grid, "stroke-width": value === 0 && y.zeroline ? 1.5 : 1 });
        const name = make("text", { x: left - 8, y: y.at(value) + 0.35 * size, "text-anchor": "end", class: "tick row" }, svg, cut(words, size, most));
        if (named(y)) hovers.push({ box: [left - 8 - tickWidth, y.at(value) - line / 2, tickWidth, line], words });
        name.dataset.name = words;
      }
      if (!y.title || !y.title.text) return;
      const lines = wrapped(decoded(y.title.text), size, 0.9 * (high - low)), middle = (low + high) / 2;
      for (const [i, words] of lines.entries()) make("text", { transform: `translate(${line - 2 + i * line} ${middle}) rotate(-90)`, "text-anchor": "middle", fill: soft, class: "ytitle" }, svg, words);
    }

    function points(trace, x, y, area) {
      const mode = trace.mode ?? "lines", where = trace.x.map((value, i) => (value === null || trace.y[i] === null ? null : [x(value), y(trace.y[i])]));
      const path = where.reduce((made, point, i) => (point ? `${made}${made && where[i - 1] ? "L" : "M"}${point[0].toFixed(1)} ${point[1].toFixed(1)}` : made), "");
      const colour = paint(among(trace.line?.color ?? trace.marker?.color ?? "#8c8c8c", 0));
      if (trace.fill) make("path", { d: `${path}z`, fill: paint(trace.fillcolor), stroke: trace.line.width ? colour : null, "stroke-width": trace.line.width }, area);
      else if (mode.includes("lines")) make("path", { d: path, fill: "none", stroke: colour, "stroke-width": trace.line.width ?? 2, "stroke-dasharray": DASHES[trace.line.dash], "stroke-linejoin": "round" }, area);
      for (const [name, along] of [["error_x", 0], ["error_y", 1]]) {
        const errors = trace[name];
        if (!errors) continue;
        where.forEach((point, i) => {
          if (!point || errors.array[i] === null) return;
          const value = along ? trace.y[i] : trace.x[i], to = along ? y : x;
          const [low, high] = [to(value - errors.arrayminus[i]), to(value + errors.array[i])];
          const stroke = paint(among(errors.color ?? trace.marker.color, i));
          make("path", { d: along ? `M${point[0]} ${low}V${high}` : `M${low} ${point[1]}H${high}`, stroke, "stroke-width": errors.thickness ?? 1.5, class: "interval" }, area);
        });
      }
      where.forEach((point, i) => {
        if (!point || trace.hoverinfo === "skip") return;
        if (mode.includes("markers")) marker(area, point, among(trace.marker.symbol ?? "circle", i), paint(among(trace.marker.color, i)), (trace.marker.size ?? 7) / 2);
        if (trace.hovertemplate) hovers.push({ at: point, words: filled(trace.hovertemplate, { x: trace.x[i], y: trace.y[i], text: among(trace.text, i) }), name: trace.meta?.method ?? "" });
      });
    }

    function marker(parent, [x, y], symbol, colour, r) {
      const open = symbol.endsWith("-open");
      make("path", { d: SYMBOLS[symbol.replace("-open", "")](r), transform: `translate(${x.toFixed(1)} ${y.toFixed(1)})`, fill: open ? settings.paper : colour, stroke: open ? colour : null, "stroke-width": open ? 2 : null, class: "point" }, parent);
    }

    function bars(trace, x, y, area) {
      const colour = paint(trace.marker.color), hatch = trace.marker.pattern?.shape;
      const fill = hatch ? `hatch-${place.id}-${trace.name.replace(/\W/g, "")}` : null;
      if (hatch) {
        const pattern = make("pattern", { id: fill, width: 6, height: 6, patternUnits: "userSpaceOnUse" }, make("defs", {}));
        make("rect", { width: 6, height: 6, fill: colour }, pattern);
        make("path", { d: hatch === "x" ? "M0 0L6 6M6 0L0 6" : hatch === "/" ? "M0 6L6 0" : "M2 3h2", stroke: "rgba(0,0,0,.35)" }, pattern);
      }
      trace.x.forEach((value, i) => {
        if (!value) return;
        const from = x(trace.base[i]), to = x(trace.base[i] + value), middle = y(trace.y[i]), tall = Math.abs(y(trace.width) - y(0));
        make("rect", { x: from, y: middle - tall / 2, width: to - from, height: tall, fill: hatch ? `url(#${fill})` : colour }, area);
        const words = String(value);
        if (widthOf(words, size) + 8 < to - from) {
          make("rect", { x: (from + to - widthOf(words, size)) / 2 - 3, y: middle - size * 0.65, width: widthOf(words, size) + 6, height: size * 1.3, fill: colour, rx: 3 }, area);
          make("text", { x: (from + to) / 2, y: middle + 0.36 * size, "text-anchor": "middle", fill: "#000" }, area, words);
        }
        hovers.push({ box: [from, middle - tall / 2, to - from, tall], words: filled(trace.hovertemplate, { x: value, text: among(trace.text, i) }) });
      });
    }

    function heat(trace, x, y, area) {
      const at = edges(trace.x).map(x), tall = Math.abs(y(1) - y(0));
      trace.z.forEach((row, j) => row.forEach((value, i) => {
        if (value === null) return;
        const box = [at[i], y(j) - tall / 2, at[i + 1] - at[i], tall];
        make("rect", { x: box[0], y: box[1], width: box[2] + 0.4, height: box[3] + 0.4, fill: shade(trace, value) }, area);
        hovers.push({ box, words: filled(trace.hovertemplate, { x: trace.x[i], z: value, y: trace.y[j] }) });
      }));
    }

    function shade(trace, value) {
      const part = (value - trace.zmin) / (trace.zmax - trace.zmin), stops = trace.colorscale;
      const above = Math.max(1, stops.findIndex(([stop]) => stop >= part)), [from, to] = [stops[above - 1], stops[above]];
      const share = Math.min(1, Math.max(0, (part - from[0]) / (to[0] - from[0])));
      const [one, two] = [from, to].map(([, colour]) => [1, 3, 5].map((k) => parseInt(paint(colour).slice(k, k + 2), 16)));
      return `rgb(${one.map((level, k) => Math.round(level + share * (two[k] - level))).join()})`;
    }

    function legend() {  // its height
      const map = traces.find((trace) => trace.type === "heatmap");
      if (map) {
        const words = decoded(map.colorbar.title.text), from = Math.min(widthOf(words, size), width - 200) + 50;
        make("text", { x: 0, y: size + 2 }, svg, words);
        for (let i = 0; i < 60; i += 1) make("rect", { x: from + 2 * i, y: 3, width: 2.3, height: size, fill: shade(map, map.zmin + (i / 59) * (map.zmax - map.zmin)) });
        make("text", { x: from - 6, y: size + 2, "text-anchor": "end" }, svg, written(map.zmin));
        make("text", { x: from + 126, y: size + 2 }, svg, written(map.zmax));
        return size + 12;
      }
      const shown = figure.data.filter((trace) => trace.showlegend !== false && trace.name);
      if (layout.showlegend === false || (shown.length < 2 && !layout.showlegend)) return 0;
      let x = 0, y = size;
      for (const trace of shown) {
        const name = decoded(trace.name), method = trace.meta?.method, off = method && !kept(method);
        const words = cut(name, size, width - 50), wide = widthOf(words, size) + 48;
        if (x && x + wide > width) { x = 0; y += 1.6 * size; }
        const entry = make("g", { class: "key-entry", opacity: off ? 0.35 : null, "data-method": method });
        const colour = paint(among(trace.line?.color ?? trace.marker.color, 0));
        if (trace.type === "bar") make("rect", { x: x + 10, y: y - size + 2, width: 14, height: size - 2, fill: colour }, entry);
        else if ((trace.mode ?? "").includes("lines")) make("path", { d: `M${x} ${y - 4}h28`, stroke: colour, "stroke-width": 2.4, "stroke-dasharray": DASHES[trace.line.dash] }, entry);
        if ((trace.mode ?? "").includes("markers")) marker(entry, [x + 14, y - 4], among(trace.marker.symbol ?? "circle", 0), colour, 4.5);
        make("text", { x: x + 34, y, class: "key-text" }, entry, words);
        if (method) { entry.style.cursor = "pointer"; entry.addEventListener("click", () => toggle(method)); }
        x += wide;
      }
      return y + 10;
    }
  };

  function only(trace, kept) {  // of a trace about several methods, the points of those that are shown
    if (!trace.meta || !trace.meta.methods) return structuredClone(trace);
    const on = trace.meta.methods.map(kept), part = (list) => (Array.isArray(list) ? list.filter((_, i) => on[i]) : list);
    const copy = structuredClone(trace);
    for (const key of ["x", "y", "text", "base"]) copy[key] = part(copy[key]);
    for (const key of ["error_x", "error_y"]) if (copy[key]) Object.assign(copy[key], { array: part(copy[key].array), arrayminus: part(copy[key].arrayminus) });
    return copy;
  }

  function compressed(layout, traces, rows, kept) {  // close the rows of hidden methods; how many those are
    const hidden = rows.map((method) => !kept(method)), count = hidden.filter(Boolean).length;
    const moved = (value) => value - hidden.slice(0, Math.max(0, Math.round(value))).filter(Boolean).length;
    for (const trace of traces) trace.y = trace.y.map(moved);
    const axis = layout.yaxis;
    axis.ticktext = axis.ticktext.filter((_, i) => !hidden[i]);
    axis.tickvals = axis.ticktext.map((_, i) => i);
    axis.range = [axis.range[0] - count, axis.range[1]];
    return count;
  }

  function hover(place, svg, items, width) {
    const tip = Object.assign(document.createElement("div"), { className: "tip", hidden: true });
    tip.setAttribute("aria-hidden", "true");
    place.append(tip);
    function show(event) {
      const box = svg.getBoundingClientRect(), [x, y] = [event.clientX - box.left, event.clientY - box.top];
      let best = null, nearest = 24;
      for (const item of items) {
        const far = item.at ? Math.hypot(item.at[0] - x, item.at[1] - y) : x >= item.box[0] && x <= item.box[0] + item.box[2] && y >= item.box[1] && y <= item.box[1] + item.box[3] ? 0 : Infinity;
        if (far < nearest) [best, nearest] = [item, far];
      }
      tip.hidden = !best;
      if (!best) return;
      tip.replaceChildren(...[best.name, ...best.words.split("<br>")].filter(Boolean).map((words) => Object.assign(document.createElement("div"), { textContent: words })));
      const [left, top] = best.at ?? [x, y];
      tip.style.left = `${Math.max(0, Math.min(left + 12, width - tip.offsetWidth - 2))}px`;
      tip.style.top = `${top + 14}px`;
    }
    svg.addEventListener("pointermove", show);
    svg.addEventListener("pointerdown", show);
    svg.addEventListener("pointerleave", () => { tip.hidden = true; });
  }
})();
