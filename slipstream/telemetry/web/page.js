// The page: what stands where. Each part says in one sentence how to read it, and says so when the run has no data for it.

const COLOUR = ["var(--blue)", "var(--orange)", "var(--teal)", "var(--violet)", "var(--rose)", "var(--gold)"];
const STEP = { label: "learner step", write: write.whole, whole: true };

function buildPage(page, data) {
  document.title = `${data.title.recipe}, ${modeName(data.title)} · Slipstream`;
  page.append(header(data));
  if (data.compare) page.append(comparePart(data, data.compare));
  page.append(
    section("Learning", "What the policy learned, step by step.", learningPart(data)),
    section("Verdicts", "How the samples of each step ended. Those without a verdict (timeout, infrastructure) are never trained on.", verdictsPart(data)),
    section("Throughput", "Tokens a second over the run: one band a sampler, and what the learner took in below. Gaps are time in which nobody sampled or nobody trained.", ...throughputPart(data.throughput)),
    section("Lanes", "One row a slot, one box a rollout, coloured by the policy version that wrote its tokens: a box of several colours took in new weights while it was being written. Scroll to zoom, drag to move, point at anything to read it.", data.lanes.rollouts || data.lanes.spans.role.length ? lanesPart(data.lanes) : nothing("No rollout was finished and no phase recorded yet.")),
    section("Trust", "How stale the trained tokens were, and how far the learner's probabilities had moved from the samplers'.", trustPart(data)),
    section("Where the time went", "Seconds of each learner phase, and the share of each step in which a role had nothing to do.", phasesPart(data)),
    section("Samples to read", "Rollouts of the first and last step and of some between. The small number before a stretch of text is the policy version that wrote it; what an environment wrote is grey.", data.samples.length ? samplesPart(data.samples) : nothing("No rollout has been trained on yet.")),
    section("Configuration", null, make("details", { class: "panel" }, make("summary", {}, "run.toml, whole"), make("pre", {}, data.config || "empty"))),
  );
}

function modeName(title) {
  if (!title.mode) return "mode unknown";
  return title.mode === "sync" ? "synchronous" : `${title.mode}, η = ${title.eta ?? "?"}`;
}

function section(name, words, ...content) {
  return make("section", {}, make("h2", {}, name), words ? make("p", { class: "lead" }, words) : null, ...content);
}

function nothing(words) {
  return make("p", { class: "panel empty" }, words);
}

function header(data) {
  const { title } = data;
  const planned = title.planned ? ` of ${title.planned}` : "";
  const state = title.finished ? "finished" : `unfinished: ${title.steps}${planned} steps`;
  const facts = [`seed ${title.seed ?? "unknown"}`, title.duration, state, title.resumes ? `resumed ${title.resumes}×` : null, title.run_id ? `run ${title.run_id}` : null];
  return make(
    "header",
    {},
    make("p", { class: "brand" }, "Slipstream"),
    make("h1", {}, title.recipe, make("span", {}, modeName(title))),
    make("p", { class: "facts" }, facts.filter(Boolean).join("  ·  ")),
    make("div", { class: "tiles" }, ...data.tiles.map(tile)),
  );
}

function tile(one) {
  const value = make("p", { class: "value" }, one.first == null ? null : make("span", {}, `${one.first} → `), one.last);
  return make("div", { class: "tile" }, make("p", { class: "name" }, one.label), value, make("p", { class: "hint" }, one.note));
}

// One line of a metric over the steps.
function curve(name, key, metrics, colour, extra = {}) {
  return { name, colour, x: metrics.step, y: metrics[key], ...extra };
}

function heldOut(evaluations, x, colour, name = "held-out greedy, 95 % band") {
  return { name, colour, x: evaluations[x], y: evaluations.pass_at_1, low: evaluations.low, high: evaluations.high, dots: true };
}

// Rewards between 0 and 1 read as shares; others as they are.
function rewardScale(...values) {
  const inside = values.flat().every((value) => value == null || (value >= 0 && value <= 1));
  return inside ? { domain: [0, 1], write: write.percent } : {};
}

function learningPart({ metrics, evaluations, warm_start: warm }) {
  const none = "no learner step in this run yet";
  const share = { domain: [0, 1], write: write.percent };
  const charts = [
    lineChart({ title: "Reward", x: STEP, y: { label: "share right, reward", ...rewardScale(metrics.reward_mean) }, series: [heldOut(evaluations, "step", COLOUR[0]), curve("sampled reward", "reward_mean", metrics, COLOUR[1])], empty: none, height: 250 }),
    lineChart({ title: "Worked share and format", x: STEP, y: { label: "share of rollouts", ...share }, series: [curve("worked", "style_share", metrics, COLOUR[2]), curve("asked form", "format_ok", metrics, COLOUR[3])], empty: none, height: 250 }),
    lineChart({ title: "Length", x: STEP, y: { label: "tokens a completion" }, series: [curve("completion tokens", "completion_tokens_mean", metrics, COLOUR[2])], empty: none }),
    lineChart({ title: "Entropy", x: STEP, y: { label: "nats a token" }, series: [curve("entropy", "entropy", metrics, COLOUR[3])], empty: none }),
    lineChart({ title: "KL to the reference", x: STEP, y: { label: "nats a token" }, series: [curve("KL", "kl", metrics, COLOUR[4])], empty: "not computed in this run" }),
    lineChart({ title: "Gradient norm", x: STEP, y: { label: "norm" }, series: [curve("gradient norm", "grad_norm", metrics, COLOUR[5])], empty: none }),
    lineChart({ title: "Loss", x: STEP, y: { label: "loss" }, series: [curve("loss", "loss", metrics, COLOUR[0])], empty: none }),
  ];
  if (warm.step.length) charts.push(lineChart({ title: "Warm start", x: { ...STEP, label: "supervised step" }, y: { label: "loss" }, series: [{ name: "loss", colour: COLOUR[1], x: warm.step, y: warm.loss }] }));
  return make("div", { class: "grid" }, ...charts);
}

const ENDINGS = {
  value: ["rewarded", "var(--right)"],
  wrong: ["wrong", "var(--wrong)"],
  unparseable: ["no answer to read", COLOUR[5]],
  timeout: ["timeout: no verdict", COLOUR[3]],
  infrastructure: ["failure: no verdict", COLOUR[4]],
};

// The middle edges of steps: a bin a step.
function stepEdges(steps) {
  return [...steps.map((step) => step - 0.5), (steps[steps.length - 1] ?? 0) + 0.5];
}

function verdictsPart({ metrics, outcomes, evaluations }) {
  const steps = metrics.step;
  const found = Object.entries(outcomes);
  const series = found.map(([kind, y]) => ({ name: ENDINGS[kind][0], colour: ENDINGS[kind][1], y }));
  const total = (values) => values.reduce((sum, value) => sum + value, 0);
  const all = total(found.map(([, y]) => total(y)));
  const hint = all ? `In all ${write.whole(all)}: ${found.map(([kind, y]) => `${ENDINGS[kind][0].split(":")[0]} ${write.whole(total(y))}`).join(", ")}.` : null;
  const charts = [stackChart({ title: "Outcomes", hint, edges: stepEdges(steps), binName: (i) => `step ${steps[i]}`, x: STEP, y: { label: "samples", write: write.whole }, series, height: 240, empty: "not recorded in this run" })];
  const share = { label: "share", domain: [0, 1], write: write.percent };
  const aside = metrics.side_turns_mean.some((value) => value);
  if (aside || metrics.turns_mean.some((value) => value > 1)) {
    const lines = [curve("episodes that call a tool", "call_share", metrics, COLOUR[0]), curve("calls answered with an error", "failed_call_share", metrics, COLOUR[4]), curve("tokens that environments wrote", "environment_token_share", metrics, COLOUR[2])];
    if (metrics.reused_token_share.some((value) => value != null)) lines.push(curve("prompt tokens kept from earlier turns", "reused_token_share", metrics, COLOUR[3]));
    const turns = [curve(aside ? "in the rollout" : "turns", "turns_mean", metrics, COLOUR[0])];
    if (aside) turns.push(curve("aside, not trained", "side_turns_mean", metrics, COLOUR[5]));
    charts.push(lineChart({ title: "Episodes", x: STEP, y: share, series: lines, height: 240 }), lineChart({ title: "Turns", x: STEP, y: { label: "of the model, an episode", domain: [0, null] }, series: turns }));
  }
  if (metrics.refilled_groups.some((value) => value)) {
    const lines = [curve("replaced by further prompts", "refilled_groups", metrics, COLOUR[2]), curve("trained on all the same", "zero_variance_groups", metrics, COLOUR[5])];
    charts.push(lineChart({ title: "Groups without signal", x: STEP, y: { label: "groups", domain: [0, null] }, series: lines }));
  }
  const ks = Object.entries(evaluations.pass_at_k);
  if (ks.length) {
    const lines = ks.map(([k, y], i) => ({ name: `pass@${k}`, colour: COLOUR[(i + 1) % COLOUR.length], x: evaluations.step, y, dots: true }));
    charts.push(lineChart({ title: "Held-out pass@k", x: STEP, y: { ...share, label: "share solved" }, series: [heldOut(evaluations, "step", COLOUR[0], "greedy, 95 % band"), ...lines] }));
  }
  return make("div", { class: "grid" }, ...charts);
}

function throughputPart(throughput, top = {}) {
  const edges = throughput.edges_s;
  const span = top.span || edges[edges.length - 1] || 1;
  const time = { label: "run clock", write: (value) => write.time(value, span) };
  const binName = (i) => `${write.time(edges[i], 5)} to ${write.time(edges[i + 1], 5)}`;
  const bands = Object.entries(throughput.samplers).map(([name, y], i) => ({ name, y, colour: COLOUR[[0, 2, 3, 5, 4][i % 5]] }));
  const parts = throughput.warm_start_s ? [{ name: "warm start", from: throughput.warm_start_s[0], to: throughput.warm_start_s[1] }] : [];
  const common = { edges, parts, binName, x: { ...time, domain: [0, span] } };
  return [
    stackChart({ ...common, title: "Sampled", series: bands, y: { label: "tokens / s", write: write.thousands, top: top.sampled }, height: 230, empty: "no rollout in this run yet" }),
    stackChart({ ...common, title: "Trained", series: [{ name: "learner", y: throughput.learner, colour: COLOUR[1] }], y: { label: "tokens / s", write: write.thousands, top: top.trained }, height: 170, empty: "no learner step in this run yet" }),
  ];
}

// Samplers of other processes: how far what they say of their tokens is from what the learner finds, and who was put in quarantine.
function samplersTrust({ ratios, quarantined }, span) {
  const charts = [];
  const time = { label: "run clock", write: (value) => write.time(value, span) };
  const lines = Object.entries(ratios).map(([name, { time: x, ratio: y }], i) => ({ name, x, y, colour: COLOUR[i % COLOUR.length], dots: true }));
  if (lines.length) charts.push(lineChart({ title: "Importance ratio at equal weights, by sampler", x: time, y: { label: "mean ratio" }, series: lines }));
  if (quarantined.length) {
    const head = ["sampler", "when", "weights", "why"].map((name) => make("th", { scope: "col" }, name));
    const rows = quarantined.map((one) => make("tr", {}, ...[one.worker, write.time(one.time, span), `version ${one.version}`, one.cause].map((cell) => make("td", {}, cell))));
    charts.push(make("div", { class: "panel scroll" }, make("h3", {}, "Samplers in quarantine"), make("table", {}, make("thead", {}, make("tr", {}, ...head)), make("tbody", {}, ...rows))));
  }
  return charts;
}

function trustPart({ metrics, ages, samplers, title }) {
  const none = "not recorded in this run";
  return make(
    "div",
    { class: "grid" },
    barChart({ title: "Age of trained tokens", x: { label: "lag in versions", write: write.whole }, y: { label: "share of tokens" }, at: ages.lag, values: ages.tokens, bound: ages.bound, colour: COLOUR[0], unit: "tokens", empty: "no token trained yet" }),
    lineChart({ title: "Age of rollouts", x: STEP, y: { label: "versions" }, series: [curve("greatest", "age_max", metrics, COLOUR[4]), curve("mean", "age_mean", metrics, COLOUR[0])], empty: none }),
    lineChart({ title: "Importance ratio, mean", x: STEP, y: { label: "ratio" }, series: [curve("ratio", "ratio_mean", metrics, COLOUR[1])], empty: none }),
    lineChart({ title: "Effective sample size", x: STEP, y: { label: "share", write: write.percent }, series: [curve("effective samples", "ess", metrics, COLOUR[2])], empty: none }),
    lineChart({ title: "Rollouts of several versions", x: STEP, y: { label: "share of rollouts", domain: [0, null], write: write.percent }, series: [curve("mixed", "mixed_version_share", metrics, COLOUR[3])], empty: none }),
    lineChart({ title: "Mismatch at equal weights, greatest", x: STEP, y: { label: "nats" }, series: [curve("mismatch", "mismatch_abs_max", metrics, COLOUR[5], { dots: true })], empty: "not measured in this run" }),
    ...samplersTrust(samplers, title.duration_s || 1),
  );
}

// Where a few steps (the first compiles) are far taller than the others, the axis follows the others and the words say so.
function fittingTop(sums) {
  const usual = [...sums].sort((a, b) => a - b)[Math.floor(0.95 * (sums.length - 1))];
  const tall = sums.filter((sum) => sum > 3 * usual);
  if (!tall.length || !usual) return {};
  const words = `Steps taller than this chart: ${tall.length} of ${sums.length}, the tallest ${write.number(Math.max(...tall))} s.`;
  return { top: 1.6 * usual, hint: words };
}

function phasesPart({ metrics, phases }) {
  const steps = metrics.step;
  const series = Object.entries(phases).map(([name, y]) => ({ name, y, colour: `var(--phase-${name}, var(--muted))` }));
  const idle = [curve("samplers", "sampler_idle", metrics, COLOUR[0]), curve("learner", "learner_idle", metrics, COLOUR[1])];
  const { top, hint } = fittingTop(steps.map((_, i) => series.reduce((sum, one) => sum + (one.y[i] || 0), 0)));
  return make(
    "div",
    { class: "grid" },
    stackChart({ title: "Learner phases", hint, edges: stepEdges(steps), binName: (i) => `step ${steps[i]}`, x: STEP, y: { label: "seconds", write: write.number, top }, series, height: 240, empty: "no learner step in this run yet" }),
    lineChart({ title: "Idle", x: STEP, y: { label: "share of the step", domain: [0, 1], write: write.percent }, series: idle, height: 240, empty: "no learner step in this run yet" }),
  );
}

// Two runs: a table of their headline numbers, the curves that decide, and both throughputs at one scale.
function comparePart(first, second) {
  const names = [first, second].map((run) => modeName(run.title));
  if (names[0] === names[1]) [first, second].forEach((run, i) => (names[i] = run.title.name));
  const head = make("tr", {}, make("th"), ...names.map((name) => make("th", { scope: "col" }, name)));
  const rows = first.tiles.map((one, i) => make("tr", {}, make("th", { scope: "row" }, one.label), ...[one, second.tiles[i]].map((cell) => make("td", {}, cell.first == null ? cell.last : `${cell.first} → ${cell.last}`, make("span", { class: "hint" }, ` ${cell.note}`)))));
  const pair = (build) => [first, second].map((run, i) => build(run, names[i], COLOUR[i]));
  const share = { domain: [0, 1], write: write.percent };
  const rewards = rewardScale(first.metrics.reward_mean, second.metrics.reward_mean);
  const span = Math.max(first.title.duration_s, second.title.duration_s);
  const clock = { label: "run clock", write: (value) => write.time(value, span) };
  const most = (key) => Math.max(...[first, second].map((run) => Math.max(0, ...(key === "learner" ? run.throughput.learner : run.throughput.edges_s.map((_, i) => Object.values(run.throughput.samplers).reduce((sum, band) => sum + (band[i] || 0), 0)))))) * 1.06 || undefined;
  const top = { sampled: most("samplers"), trained: most("learner"), span };
  return section(
    `${names[0]} beside ${names[1]}`,
    "The same numbers of two runs. Curves over time show what asynchrony buys, curves over steps what it costs.",
    make("div", { class: "panel scroll" }, make("table", { class: "compare" }, make("thead", {}, head), make("tbody", {}, ...rows))),
    make(
      "div",
      { class: "grid" },
      lineChart({ title: "Held-out greedy over time", x: clock, y: { label: "share right", ...share }, series: pair((run, name, colour) => heldOut(run.evaluations, "time", colour, name)), empty: "no evaluation in either run" }),
      lineChart({ title: "Sampled reward over time", x: clock, y: { label: "reward", ...rewards }, series: pair((run, name, colour) => ({ name, colour, x: run.metrics.time, y: run.metrics.reward_mean })) }),
      lineChart({ title: "Sampled reward over steps", x: STEP, y: { label: "reward", ...rewards }, series: pair((run, name, colour) => curve(name, "reward_mean", run.metrics, colour)) }),
      lineChart({ title: "Learner idle", x: STEP, y: { label: "share of the step", ...share }, series: pair((run, name, colour) => curve(name, "learner_idle", run.metrics, colour)) }),
    ),
    make("div", { class: "grid" }, ...pair((run, name) => make("div", { class: "column" }, make("h3", {}, name), ...throughputPart(run.throughput, top)))),
  );
}
