// Charts as inline SVG: lines with bands, stacked areas, bars. A chart draws itself at the width it has and again when that changes.

const SVG = "http://www.w3.org/2000/svg";
const MARGIN = { top: 24, right: 14, bottom: 34, left: 52 };

function shape(tag, attributes, text) {
  const element = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  if (text != null) element.textContent = text;
  return element;
}

// Round tick values that cover [low, high] in about `count` steps.
function ticks(low, high, count) {
  const raw = (high - low) / count;
  const power = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 2.5, 5, 10].map((factor) => factor * power).find((size) => size >= raw * 0.999);
  const found = [];
  for (let i = Math.ceil(low / step - 1e-9); i * step <= high + step * 1e-9; i++) found.push(Number((i * step).toPrecision(12)));
  return found;
}

// Numbers, or percents, with as many digits as tell neighbouring ticks apart.
function tickWriter(values, percent) {
  const factor = percent ? 100 : 1;
  const step = Math.abs(values[1] - values[0]) * factor;
  const size = Math.max(...values.map(Math.abs)) * factor;
  if (!step || (!percent && (size < 1e-3 || size >= 1e4))) return percent || write.number;
  let digits = 0;
  while (digits < 6 && Math.abs(Number(step.toFixed(digits)) - step) > step * 1e-6) digits += 1;
  return (value) => `${(value * factor).toFixed(digits).replace("-", "−")}${percent ? " %" : ""}`;
}

// Least and greatest value with a little room. `fixed` is shown at least: a value outside it widens the axis, so that it is seen.
function extent(values, fixed = [null, null]) {
  const present = values.filter((value) => value != null && Number.isFinite(value));
  let low = Math.min(...present, fixed[0] ?? Infinity);
  let high = Math.max(...present, fixed[1] ?? -Infinity);
  if (low > high) [low, high] = [0, 1];
  if (low === high) [low, high] = [low - (Math.abs(low) * 0.1 || 0.5), high + (Math.abs(high) * 0.1 || 0.5)];
  const room = (high - low) * 0.06;
  return [low === fixed[0] ? low : low - room, high === fixed[1] ? high : high + room];
}

function legend(series) {
  const list = make("ul", { class: "legend" });
  for (const one of series) {
    const key = make("span", { class: `key ${one.dashed ? "dashed" : ""} ${one.area ? "block" : ""}` });
    key.style.setProperty("--colour", one.colour);
    list.append(make("li", {}, key, one.name));
  }
  return list;
}

// A figure with title, legend and a drawing area; `draw(svg, width, height)` is called at each size. `empty` is said instead of drawing.
function figure(spec, draw) {
  const area = make("div", { class: "plot" });
  area.style.height = `${spec.height || 220}px`;
  const head = make("figcaption", {}, make("span", { class: "name" }, spec.title), spec.series?.length > 1 || spec.legend ? legend(spec.series) : null);
  const box = make("figure", { class: "chart" }, head, area);
  if (spec.hint) box.append(make("p", { class: "hint" }, spec.hint));
  if (spec.empty) {
    area.append(make("p", { class: "empty" }, spec.empty));
    area.style.height = "96px";
    return box;
  }
  const redraw = (width) => {
    const svg = shape("svg", { width, height: spec.height || 220, role: "img", "aria-label": spec.label || spec.title });
    draw(svg, width, spec.height || 220);
    area.replaceChildren(svg);
  };
  onWidth(area, redraw);
  return box;
}

// Calls `act(width)` by `drawAll`, once the element is in the page, and whenever its width changes, in the next frame (acting inside the
// observer could change sizes again and make it loop). The page is whole without waiting for a frame, which a busy machine may not give.
const notDrawn = [];

function onWidth(element, act) {
  let width = 0;
  const look = () => {
    const now = Math.floor(element.clientWidth);
    if (!now || now === width) return;
    width = now;
    act(width);
  };
  notDrawn.push(look);
  new ResizeObserver(() => requestAnimationFrame(look)).observe(element);
}

function drawAll() {
  for (const look of notDrawn.splice(0)) look();
}

// Axes with grid and labels; returns the two scales.
function axes(svg, width, height, x, y) {
  const right = width - MARGIN.right;
  const bottom = height - MARGIN.bottom;
  const toX = (value) => MARGIN.left + ((value - x.domain[0]) / (x.domain[1] - x.domain[0])) * (right - MARGIN.left);
  const toY = (value) => bottom - ((value - y.domain[0]) / (y.domain[1] - y.domain[0])) * (bottom - MARGIN.top);
  const rungs = ticks(...y.domain, Math.max(2, Math.floor(height / 55)));
  const writeRung = !y.write || y.write === write.percent ? tickWriter(rungs, y.write) : y.write;
  for (const value of rungs) {
    svg.append(shape("line", { class: "grid", x1: MARGIN.left, x2: right, y1: toY(value), y2: toY(value) }));
    svg.append(shape("text", { class: "tick", x: MARGIN.left - 8, y: toY(value) + 4, "text-anchor": "end" }, writeRung(value)));
  }
  const marks = x.ticks || ticks(...x.domain, Math.max(2, Math.floor(width / 95)));
  for (const value of marks.filter((one) => !x.whole || Number.isInteger(one))) {
    svg.append(shape("text", { class: "tick", x: toX(value), y: bottom + 16, "text-anchor": "middle" }, (x.write || write.number)(value)));
  }
  svg.append(shape("line", { class: "axis", x1: MARGIN.left, x2: right, y1: bottom, y2: bottom }));
  svg.append(shape("text", { class: "label", x: right, y: height - 3, "text-anchor": "end" }, x.label));
  if (y.label) svg.append(shape("text", { class: "label", x: 2, y: 12 }, y.label));
  return { toX, toY, bottom, right };
}

// Path through the points that are there; a gap where a value is absent.
function path(xs, ys, toX, toY) {
  let text = "";
  let pen = "M";
  xs.forEach((x, i) => {
    if (x == null || ys[i] == null) pen = "M";
    else {
      text += `${pen}${toX(x).toFixed(1)} ${toY(ys[i]).toFixed(1)}`;
      pen = "L";
    }
  });
  return text;
}

// Lines: series of {name, colour, x, y, low?, high?, dots?, dashed?}; x and y are {label, domain?, write?}.
function lineChart(spec) {
  const present = spec.series.filter((one) => one.y.some((value) => value != null));
  const every = { ...spec, series: present, empty: present.length ? null : spec.empty || "no data in this run" };
  return figure(every, (svg, width, height) => {
    const x = { ...spec.x, domain: spec.x.domain || extent(present.flatMap((one) => one.x), spec.x.fixed) };
    const y = { ...spec.y, domain: extent(present.flatMap((one) => [...one.y, ...(one.low || []), ...(one.high || [])]), spec.y.domain) };
    const scale = axes(svg, width, height, x, y);
    for (const one of present) {
      if (one.low?.some((value) => value != null)) {
        const back = path([...one.x].reverse(), [...one.low].reverse(), scale.toX, scale.toY).replace("M", "L");
        svg.append(shape("path", { d: `${path(one.x, one.high, scale.toX, scale.toY)}${back}Z`, fill: one.colour, class: "band" }));
      }
      svg.append(shape("path", { d: path(one.x, one.y, scale.toX, scale.toY), stroke: one.colour, class: `line ${one.dashed ? "dashed" : ""}` }));
      const few = one.y.filter((value) => value != null).length < 3;
      if (one.dots || few) one.y.forEach((value, i) => value != null && svg.append(shape("circle", { cx: scale.toX(one.x[i]), cy: scale.toY(value), r: 3.5, fill: one.colour })));
    }
    hoverLines(svg, width, scale, present, x, spec.y.write || write.number);
  });
}

// A vertical line at the nearest x of any series, and the values there.
function hoverLines(svg, width, scale, series, x, writeY) {
  const cursor = shape("line", { class: "cursor", y1: MARGIN.top, y2: scale.bottom, visibility: "hidden" });
  svg.append(cursor);
  const points = [...new Set(series.flatMap((one) => one.x.filter((_, i) => one.y[i] != null)))].sort((a, b) => a - b);
  svg.addEventListener("pointermove", (event) => {
    const at = event.clientX - svg.getBoundingClientRect().left;
    const nearest = points.reduce((best, point) => (Math.abs(scale.toX(point) - at) < Math.abs(scale.toX(best) - at) ? point : best), points[0]);
    cursor.setAttribute("x1", scale.toX(nearest));
    cursor.setAttribute("x2", scale.toX(nearest));
    cursor.setAttribute("visibility", "visible");
    const rows = series.flatMap((one) => {
      const i = one.x.indexOf(nearest);
      if (i < 0 || one.y[i] == null) return [];
      const band = one.low?.[i] != null ? ` (${writeY(one.low[i])} to ${writeY(one.high[i])})` : "";
      return [tipRow(one.colour, one.name, `${writeY(one.y[i])}${band}`)];
    });
    tip.show(event, make("strong", {}, `${x.label} ${(x.write || write.number)(nearest)}`), ...rows);
  });
  svg.addEventListener("pointerleave", () => {
    cursor.setAttribute("visibility", "hidden");
    tip.hide();
  });
}

function tipRow(colour, name, value) {
  const key = make("span", { class: "key block" });
  key.style.setProperty("--colour", colour);
  return make("div", { class: "row" }, key, make("span", {}, name), make("b", {}, value));
}

// Stacked steps over bins: series of {name, colour, y}, one value a bin; `edges` are the bins' borders; `parts` are named stretches behind.
function stackChart(spec) {
  const series = spec.series.filter((one) => one.y.some((value) => value));
  const every = { ...spec, series: series.map((one) => ({ ...one, area: true })), legend: true, empty: series.length ? null : spec.empty };
  return figure(every, (svg, width, height) => {
    const sums = spec.edges.slice(1).map((_, i) => series.reduce((sum, one) => sum + (one.y[i] || 0), 0));
    const x = { ...spec.x, domain: spec.x.domain || [spec.edges[0], spec.edges[spec.edges.length - 1]] };
    const y = { ...spec.y, domain: [0, spec.y.top || Math.max(...sums, 1e-12) * 1.06] };
    const scale = axes(svg, width, height, x, y);
    for (const part of spec.parts || []) {
      const [left, right] = [scale.toX(part.from), scale.toX(part.to)];
      svg.append(shape("rect", { class: "part", x: left, width: right - left, y: MARGIN.top, height: scale.bottom - MARGIN.top }));
      if (right - left > 60) svg.append(shape("text", { class: "label", x: (left + right) / 2, y: MARGIN.top + 16, "text-anchor": "middle" }, part.name));
    }
    let below = sums.map(() => 0);
    for (const one of series) {
      const above = below.map((value, i) => value + (one.y[i] || 0));
      svg.append(shape("path", { d: stairs(spec.edges, above, below, { toX: scale.toX, toY: (value) => scale.toY(Math.min(value, y.domain[1])) }), fill: one.colour, class: "stack" }));
      below = above;
    }
    svg.addEventListener("pointermove", (event) => {
      const at = event.clientX - svg.getBoundingClientRect().left;
      const i = spec.edges.findIndex((_, k) => k + 1 < spec.edges.length && scale.toX(spec.edges[k + 1]) > at);
      if (i < 0) return;
      const rows = series.map((one) => tipRow(one.colour, one.name, (spec.y.write || write.number)(one.y[i])));
      tip.show(event, make("strong", {}, spec.binName(i)), ...rows.reverse(), tipRow("transparent", "together", (spec.y.write || write.number)(sums[i])));
    });
    svg.addEventListener("pointerleave", tip.hide);
  });
}

function stairs(edges, above, below, scale) {
  let there = "";
  let back = "";
  above.forEach((value, i) => {
    const [left, right] = [scale.toX(edges[i]).toFixed(1), scale.toX(edges[i + 1]).toFixed(1)];
    there += `${i ? "L" : "M"}${left} ${scale.toY(value).toFixed(1)}L${right} ${scale.toY(value).toFixed(1)}`;
    back = `L${right} ${scale.toY(below[i]).toFixed(1)}L${left} ${scale.toY(below[i]).toFixed(1)}${back}`;
  });
  return `${there}${back}Z`;
}

// Bars at whole numbers, with an optional bound drawn as a line after it.
function barChart(spec) {
  const total = spec.values.reduce((sum, value) => sum + value, 0);
  return figure({ ...spec, empty: total ? null : spec.empty }, (svg, width, height) => {
    const last = Math.max(...spec.at, spec.bound ?? 0);
    const first = Math.min(0, ...spec.at);
    const x = { ...spec.x, domain: [first - 0.6, last + 0.6], whole: true };
    const y = { ...spec.y, domain: [0, Math.max(...spec.values) / total * 1.12], write: write.percent };
    const scale = axes(svg, width, height, x, y);
    const half = Math.min(38, (scale.toX(1) - scale.toX(0)) * 0.38);
    spec.at.forEach((at, i) => {
      const share = spec.values[i] / total;
      const over = spec.bound != null && at > spec.bound;
      const bar = shape("rect", { x: scale.toX(at) - half, width: 2 * half, y: scale.toY(share), height: scale.bottom - scale.toY(share), rx: 2, fill: over ? "var(--wrong)" : spec.colour });
      bar.addEventListener("pointermove", (event) => tip.show(event, make("strong", {}, `${spec.x.label} ${at}`), make("div", {}, `${write.whole(spec.values[i])} ${spec.unit}, ${write.percent(share)}`)));
      bar.addEventListener("pointerleave", tip.hide);
      svg.append(bar);
      if (half > 12) svg.append(shape("text", { class: "tick", x: scale.toX(at), y: scale.toY(share) - 5, "text-anchor": "middle" }, write.percent(share)));
    });
    if (spec.bound == null) return;
    const edge = scale.toX(spec.bound + 0.5);
    svg.append(shape("line", { class: "bound", x1: edge, x2: edge, y1: MARGIN.top, y2: scale.bottom }));
    svg.append(shape("text", { class: "label", x: edge, y: MARGIN.top - 8, "text-anchor": "end" }, `bound η = ${spec.bound}`));
  });
}
