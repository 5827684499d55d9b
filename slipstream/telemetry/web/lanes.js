// The lanes: who worked on what, when, with which weights. A canvas that draws only what is in view, and boxes of a pixel or two
// of one colour as one; so 10^5 rollouts stay quick.

const LANE = { left: 96, right: 12, top: 8, axis: 26, role: 20, strip: 7, gap: 12, map: 10 };

class Lanes {
  constructor(data) {
    this.data = data;
    this.scale = data.duration_s / data.ticks;
    for (const name of ["start", "end", "step", "age", "reward", "fate", "segment_count", "segment_version", "segment_tokens"]) {
      this[name] = data[name] ? unpack(data[name]) : new Uint32Array(0);
    }
    this.textIndex = data.texts.index ? unpack(data.texts.index) : new Int32Array(0);
    this.firstSegment = new Uint32Array(this.segment_count.length + 1);
    for (let i = 0; i < this.segment_count.length; i++) this.firstSegment[i + 1] = this.firstSegment[i] + this.segment_count[i];
    this.roles = data.spans.roles.filter((role) => !data.samplers.includes(role));
    this.roles.sort((a, b) => (b === "learner") - (a === "learner") || a.localeCompare(b));
    this.view = [...data.window_s];
    this.canvas = make("canvas", { tabindex: "0", role: "img", "aria-label": "Timeline of rollouts by sampler and slot, coloured by policy version. Arrow keys pan, plus and minus zoom." });
    this.versions = make("p", { class: "versions" });
    this.place();
    this.listen();
  }

  // Vertical places of all lanes.
  place() {
    const rows = this.data.rows || [];
    const height = Math.max(1.5, Math.min(11, 460 / Math.max(1, rows.length)));
    let y = LANE.top;
    this.roleY = this.roles.map(() => (y += LANE.role) - LANE.role);
    this.samplerY = [];
    this.rowY = [];
    this.rowHeight = height;
    this.data.samplers.forEach((_, sampler) => {
      y += LANE.gap;
      this.samplerY[sampler] = y;
      y += LANE.strip + 2;
      rows.forEach(([owner], row) => {
        if (owner !== sampler) return;
        this.rowY[row] = y;
        y += height;
      });
    });
    this.bottom = y + 4;
    this.height = this.bottom + LANE.axis + LANE.map;
  }

  toX(seconds) {
    return LANE.left + ((seconds - this.view[0]) / (this.view[1] - this.view[0])) * (this.width - LANE.left - LANE.right);
  }

  toSeconds(x) {
    return this.view[0] + ((x - LANE.left) / (this.width - LANE.left - LANE.right)) * (this.view[1] - this.view[0]);
  }

  colour(version) {
    return (this.palette[version] ??= versionColour(version, darkScheme.matches));
  }

  resize() {
    this.width = this.canvas.parentElement?.clientWidth || 0;
    const ratio = window.devicePixelRatio || 1;
    this.canvas.width = this.width * ratio;
    this.canvas.height = this.height * ratio;
    this.canvas.style.height = `${this.height}px`;
    this.pen = this.canvas.getContext("2d");
    this.pen.setTransform(ratio, 0, 0, ratio, 0, 0);
    this.palette = {};
    const style = getComputedStyle(document.documentElement);
    const names = ["ink", "muted", "rule", "sunken", ...this.data.spans.phases.map((phase) => `phase-${phase}`)];
    this.ink = Object.fromEntries(names.map((name) => [name, style.getPropertyValue(`--${name}`).trim()]));
    this.draw();
  }

  // Draw once in the next frame, however often it is asked for.
  later() {
    this.frame ??= requestAnimationFrame(() => {
      this.frame = undefined;
      this.draw();
    });
  }

  draw() {
    if (!this.width) return;
    const pen = this.pen;
    pen.clearRect(0, 0, this.width, this.height);
    pen.font = "12px system-ui, sans-serif";
    this.drawTime();
    pen.save();
    pen.beginPath();
    pen.rect(LANE.left, 0, this.width - LANE.left - LANE.right, this.bottom);
    pen.clip();
    this.rowY.forEach((y, row) => this.drawRow(row, y));
    this.drawSpans();
    this.drawMarks();
    pen.restore();
    this.drawNames();
    this.drawMap();
    this.showVersions();
  }

  drawTime() {
    const pen = this.pen;
    const span = this.view[1] - this.view[0];
    pen.textAlign = "center";
    for (const value of ticks(...this.view, Math.max(2, Math.floor(this.width / 110)))) {
      const x = this.toX(value);
      pen.fillStyle = this.ink.rule;
      pen.fillRect(Math.round(x), LANE.top, 1, this.bottom - LANE.top);
      pen.fillStyle = this.ink.muted;
      pen.fillText(write.time(value, span), Math.min(x, this.width - LANE.right - 14), this.bottom + 15);
    }
  }

  // First box of the row that ends after `ticks` (boxes of a row follow each other).
  firstAfter(row, time) {
    let [low, high] = [this.data.row_bounds[row], this.data.row_bounds[row + 1]];
    while (low < high) {
      const middle = (low + high) >> 1;
      if (this.end[middle] < time) low = middle + 1;
      else high = middle;
    }
    return low;
  }

  drawRow(row, y) {
    const pen = this.pen;
    const height = this.rowHeight > 4 ? this.rowHeight - 1 : this.rowHeight;
    pen.fillStyle = this.ink.sunken;
    pen.fillRect(LANE.left, y, this.width, height);
    const last = this.data.row_bounds[row + 1];
    const until = this.view[1] / this.scale;
    const scale = (this.scale * (this.width - LANE.left - LANE.right)) / (this.view[1] - this.view[0]);
    const shift = this.toX(0);
    this.penPlace = -1;
    let [from, to, version] = [0, -1, 0]; // a run of narrow boxes of one colour, drawn as one
    for (let i = this.firstAfter(row, this.view[0] / this.scale); i < last && this.start[i] <= until; i++) {
      const x0 = shift + this.start[i] * scale;
      const x1 = shift + this.end[i] * scale;
      const own = this.segment_version[this.firstSegment[i]];
      if (x1 - x0 < 3 && own === version && x0 - to < 1) {
        to = x1;
        continue;
      }
      if (to > from) this.fill(version, from, y, to - from, height);
      [from, to, version] = [x0, x1, own];
      if (x1 - x0 < 3) continue;
      to = from;
      this.drawBox(i, x0, x1 - (x1 - x0 > 5 ? 1 : 0), y, height);
    }
    if (to > from) this.fill(version, from, y, to - from, height);
  }

  // One rollout: a stretch for each version, as long as its share of the tokens.
  drawBox(i, x0, x1, y, height) {
    const first = this.firstSegment[i];
    const end = this.firstSegment[i + 1];
    if (end - first === 1) return this.fill(this.segment_version[first], x0, y, x1 - x0, height);
    let tokens = 0;
    for (let k = first; k < end; k++) tokens += this.segment_tokens[k];
    let x = x0;
    for (let k = first; k < end; k++) {
      const width = ((x1 - x0) * this.segment_tokens[k]) / tokens;
      this.fill(this.segment_version[k], x, y, Math.max(width, 0.5), height);
      x += width;
    }
    return undefined;
  }

  // Setting a canvas colour is what costs, so only when it changes.
  fill(version, x, y, width, height) {
    const place = version % VERSION_COLOURS;
    if (place !== this.penPlace) this.pen.fillStyle = this.colour(version);
    this.penPlace = place;
    this.pen.fillRect(x, y, width, height);
  }

  laneOf(role) {
    const own = this.roles.indexOf(role);
    if (own >= 0) return [this.roleY[own] + 2, LANE.role - 4];
    const sampler = this.data.samplers.indexOf(role);
    return sampler >= 0 ? [this.samplerY[sampler], LANE.strip] : null;
  }

  drawSpans() {
    const { spans } = this.data;
    this.roles.forEach((_, i) => {
      this.pen.fillStyle = this.ink.sunken;
      this.pen.fillRect(LANE.left, this.roleY[i] + 2, this.width, LANE.role - 4);
    });
    for (let i = 0; i < spans.role.length; i++) {
      if (spans.end[i] < this.view[0] || spans.start[i] > this.view[1]) continue;
      const [y, height] = this.laneOf(spans.roles[spans.role[i]]);
      const [x0, x1] = [this.toX(spans.start[i]), this.toX(spans.end[i])];
      this.pen.fillStyle = this.ink[`phase-${spans.phases[spans.phase[i]]}`];
      this.pen.fillRect(x0, y, Math.max(1, x1 - x0), height);
      const name = spans.phases[spans.phase[i]];
      if (height > 10 && Math.min(x1, this.width) - Math.max(x0, LANE.left) > 80 && name !== "wait") {
        this.pen.fillStyle = "#fff";
        this.pen.textAlign = "left";
        this.pen.fillText(spans.step[i] == null ? name : `${name} ${spans.step[i]}`, Math.max(x0, LANE.left) + 6, y + 12);
      }
    }
  }

  // Publishes and loads in the colour of their version; a restart across all lanes.
  drawMarks() {
    const inView = this.data.marks.filter((mark) => mark[2] >= this.view[0] && mark[2] <= this.view[1]);
    const thick = inView.length < this.width / 12 ? 3 : 1;
    for (const [role, kind, time, version] of inView) {
      const x = Math.round(this.toX(time));
      const lane = this.laneOf(role);
      if (kind === "resume") {
        this.pen.fillStyle = this.ink.ink;
        this.pen.fillRect(x, LANE.top, 2, this.bottom - LANE.top);
      } else if (lane && version != null) {
        this.pen.fillStyle = this.colour(version);
        this.pen.fillRect(x - (thick >> 1), lane[0] - 2, thick, lane[1] + 4);
      }
    }
  }

  drawNames() {
    const pen = this.pen;
    pen.textAlign = "right";
    pen.fillStyle = this.ink.ink;
    this.roles.forEach((role, i) => pen.fillText(role, LANE.left - 10, this.roleY[i] + 14));
    this.data.samplers.forEach((name, i) => {
      pen.fillStyle = this.ink.ink;
      pen.fillText(name, LANE.left - 10, this.samplerY[i] + 18);
      pen.fillStyle = this.ink.muted;
      pen.fillText(`${this.data.rows.filter(([owner]) => owner === i).length} slots`, LANE.left - 10, this.samplerY[i] + 34);
    });
  }

  // Where the view lies in the whole run.
  drawMap() {
    const width = this.width - LANE.left - LANE.right;
    const y = this.height - LANE.map + 2;
    this.pen.fillStyle = this.ink.sunken;
    this.pen.fillRect(LANE.left, y, width, 6);
    this.pen.fillStyle = this.ink.muted;
    const at = (seconds) => LANE.left + (seconds / this.data.duration_s) * width;
    this.pen.fillRect(at(this.view[0]), y, Math.max(3, at(this.view[1]) - at(this.view[0])), 6);
  }

  // The versions in view, each with its colour; past twenty-four only their range.
  showVersions() {
    let [low, high] = [Infinity, -Infinity];
    this.rowY.forEach((_, row) => {
      const last = this.data.row_bounds[row + 1];
      for (let i = this.firstAfter(row, this.view[0] / this.scale); i < last && this.start[i] * this.scale <= this.view[1]; i++) {
        low = Math.min(low, this.segment_version[this.firstSegment[i]]);
        high = Math.max(high, this.segment_version[this.firstSegment[i + 1] - 1]);
      }
    });
    const chip = (version, text) => {
      const key = make("span", { class: "key block" });
      key.style.setProperty("--colour", this.colour(version));
      return make("span", { class: "chip" }, key, text);
    };
    if (low > high) this.versions.replaceChildren("no rollout in view");
    else if (high - low < 24) this.versions.replaceChildren("policy version ", ...Array.from({ length: high - low + 1 }, (_, i) => chip(low + i, String(low + i))));
    else this.versions.replaceChildren(`policy versions ${low} to ${high}; colours repeat every ${VERSION_COLOURS}: `, ...Array.from({ length: VERSION_COLOURS }, (_, i) => chip(i, `…${i}`.slice(1))));
  }

  zoom(factor, centre = (this.view[0] + this.view[1]) / 2) {
    const whole = this.data.duration_s;
    const span = Math.min(whole, Math.max(whole * 1e-6, 0.01, (this.view[1] - this.view[0]) * factor));
    const share = (centre - this.view[0]) / (this.view[1] - this.view[0]);
    this.moveTo(centre - share * span, span);
  }

  moveTo(start, span = this.view[1] - this.view[0]) {
    const begin = Math.max(0, Math.min(this.data.duration_s - span, start));
    this.view = [begin, begin + span];
    tip.hide();
    this.later();
  }

  show(from, to) {
    this.moveTo(from, to - from);
  }

  listen() {
    const canvas = this.canvas;
    let grip = null;
    canvas.addEventListener("wheel", (event) => {
      event.preventDefault();
      const sideways = Math.abs(event.deltaX) > Math.abs(event.deltaY) || event.shiftKey;
      const amount = event.deltaX || event.deltaY;
      if (sideways) this.moveTo(this.view[0] + (amount / this.width) * (this.view[1] - this.view[0]));
      else this.zoom(Math.exp(event.deltaY * 0.0015), this.toSeconds(event.offsetX));
    }, { passive: false });
    canvas.addEventListener("pointerdown", (event) => {
      grip = { x: event.offsetX, from: this.view[0] };
      canvas.setPointerCapture(event.pointerId);
    });
    canvas.addEventListener("pointermove", (event) => {
      if (!grip) return this.hover(event);
      const moved = ((event.offsetX - grip.x) / (this.width - LANE.left - LANE.right)) * (this.view[1] - this.view[0]);
      return this.moveTo(grip.from - moved);
    });
    for (const name of ["pointerup", "pointercancel"]) canvas.addEventListener(name, () => (grip = null));
    canvas.addEventListener("pointerleave", tip.hide);
    canvas.addEventListener("keydown", (event) => {
      const span = this.view[1] - this.view[0];
      const keys = { ArrowLeft: () => this.moveTo(this.view[0] - span / 8), ArrowRight: () => this.moveTo(this.view[0] + span / 8), "+": () => this.zoom(0.7), "=": () => this.zoom(0.7), "-": () => this.zoom(1.4), Escape: () => this.show(...this.data.window_s) };
      if (!keys[event.key]) return;
      event.preventDefault();
      keys[event.key]();
    });
  }

  // What lies under the pointer: a rollout, or a phase of a role.
  hover(event) {
    const time = this.toSeconds(event.offsetX);
    const row = this.rowY.findIndex((y) => event.offsetY >= y && event.offsetY < y + this.rowHeight);
    if (event.offsetX < LANE.left) return tip.hide();
    if (row >= 0) {
      const i = this.firstAfter(row, time / this.scale);
      const inside = i < this.data.row_bounds[row + 1] && this.start[i] * this.scale <= time;
      return inside ? tip.show(event, ...this.describe(row, i)) : tip.hide();
    }
    const { spans } = this.data;
    const found = spans.role.findIndex((role, i) => {
      const [y, height] = this.laneOf(spans.roles[role]);
      return event.offsetY >= y && event.offsetY <= y + height && spans.start[i] <= time && time <= spans.end[i];
    });
    if (found < 0) return tip.hide();
    const step = spans.step[found] == null ? "" : ` ${spans.step[found]}`;
    const seconds = spans.end[found] - spans.start[found];
    return tip.show(event, make("strong", {}, spans.roles[spans.role[found]]), make("div", {}, `${spans.phases[spans.phase[found]]}${step}, ${write.time(seconds, seconds)}`));
  }

  describe(row, i) {
    const [sampler, slot] = this.data.rows[row];
    const text = this.textIndex[i];
    const parts = [];
    let tokens = 0;
    for (let k = this.firstSegment[i]; k < this.firstSegment[i + 1]; k++) {
      parts.push(tipRow(this.colour(this.segment_version[k]), `version ${this.segment_version[k]}`, `${this.segment_tokens[k]} tokens`));
      tokens += this.segment_tokens[k];
    }
    const reward = Number.isNaN(this.reward[i]) ? "no reward" : `reward ${write.number(this.reward[i])}`;
    const { texts, fates } = this.data;
    const fate = fates[this.fate[i]] === "trained" ? "trained in" : `${fates[this.fate[i]]} before`;
    return [
      make("strong", {}, `${this.data.samplers[sampler]}, slot ${slot}`),
      make("div", {}, `${tokens} tokens, ${fate} step ${this.step[i] + 1}, age ${this.age[i]}, ${reward}`),
      ...parts.slice(0, 6),
      text < 0 ? make("div", { class: "hint" }, "its text is not in this file") : make("pre", {}, make("i", {}, texts.prompts[texts.prompt[text]]), texts.completions[text]),
    ];
  }
}

function lanesPart(data) {
  const lanes = new Lanes(data);
  const stage = make("div", { class: "stage" }, lanes.canvas);
  const button = (text, act) => make("button", { type: "button", onclick: act }, text);
  const tools = make(
    "div",
    { class: "tools" },
    button("Zoom in", () => lanes.zoom(0.5)),
    button("Zoom out", () => lanes.zoom(2)),
    button("Whole run", () => lanes.show(0, data.duration_s)),
    button("Reset", () => lanes.show(...data.window_s)),
  );
  const phases = data.spans.phases.filter((_, i) => data.spans.phase.includes(i));
  const key = legend(phases.map((name) => ({ name, colour: `var(--phase-${name})`, area: true })));
  onWidth(stage, () => lanes.resize());
  darkScheme.addEventListener("change", () => lanes.resize());
  return make("div", { class: "panel" }, make("div", { class: "bar" }, tools, key), stage, lanes.versions, ...data.notes.map((note) => make("p", { class: "hint" }, note)));
}
