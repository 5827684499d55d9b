// Rollouts to read: filters, pages, and each completion shaded by the policy version that wrote it.

const PER_PAGE = 12;
const VERDICTS = { all: "every verdict", right: "right", wrong: "wrong", unparseable: "unreadable", other: "not judged" };

function verdict(sample) {
  if (sample.outcome === "unparseable") return "unparseable";
  if (sample.reward == null) return "other";
  return sample.reward > 0.5 ? "right" : "wrong";
}

function samplesPart(samples) {
  const steps = [...new Set(samples.map((sample) => sample.step))];
  const styles = [...new Set(samples.map((sample) => sample.style))].filter(Boolean).sort();
  const choice = { step: String(steps[steps.length - 1]), verdict: "all", style: "all", text: "", page: 0 };
  const body = make("tbody");
  const count = make("span", { class: "hint" });
  const change = (name) => (event) => {
    choice[name] = event.target.value;
    choice.page = 0;
    fill();
  };
  const turn = (by) => () => {
    choice.page += by;
    fill();
  };
  const back = make("button", { type: "button", onclick: turn(-1) }, "Previous");
  const on = make("button", { type: "button", onclick: turn(1) }, "Next");
  const stepNames = Object.fromEntries(steps.map((step, i) => [step, `step ${step}${i === 0 ? " (first)" : i === steps.length - 1 ? " (last)" : ""}`]));

  function fill() {
    const words = choice.text.toLowerCase();
    const found = samples.filter(
      (sample) =>
        (choice.step === "all" || String(sample.step) === choice.step) &&
        (choice.verdict === "all" || verdict(sample) === choice.verdict) &&
        (choice.style === "all" || sample.style === choice.style) &&
        (!words || `${sample.prompt} ${sample.segments.map((part) => part[1]).join("")}`.toLowerCase().includes(words)),
    );
    const first = choice.page * PER_PAGE;
    body.replaceChildren(...found.slice(first, first + PER_PAGE).map(sampleRow));
    if (!found.length) body.replaceChildren(make("tr", {}, make("td", { colspan: "6", class: "empty" }, "none of the samples in this file fits")));
    count.textContent = found.length ? `${first + 1} to ${Math.min(found.length, first + PER_PAGE)} of ${found.length}` : "";
    back.disabled = choice.page === 0;
    on.disabled = first + PER_PAGE >= found.length;
  }

  const filters = make(
    "div",
    { class: "tools" },
    picker("Step", { all: "all steps here", ...stepNames }, choice.step, change("step")),
    picker("Verdict", VERDICTS, "all", change("verdict")),
    styles.length ? picker("Style", { all: "every style", ...Object.fromEntries(styles.map((style) => [style, style])) }, "all", change("style")) : null,
    make("label", {}, "Find ", make("input", { type: "search", placeholder: "text", oninput: change("text") })),
  );
  const head = make("tr", {}, ...["Prompt", "Completion, shaded by policy version", "Wanted", "Verdict", "Advantage", "Age"].map((name) => make("th", { scope: "col" }, name)));
  fill();
  darkScheme.addEventListener("change", fill);
  return make("div", { class: "panel" }, make("div", { class: "bar" }, filters, make("div", { class: "tools" }, count, back, on)), make("div", { class: "scroll" }, make("table", { class: "samples" }, make("thead", {}, head), body)));
}

function picker(name, options, chosen, onchange) {
  const items = Object.entries(options).map(([value, text]) => make("option", { value, selected: value === chosen }, text));
  return make("label", {}, `${name} `, make("select", { onchange }, ...items));
}

function sampleRow(sample) {
  const kind = verdict(sample);
  const words = { right: "✓ right", wrong: "✗ wrong", unparseable: "✗ unreadable", other: sample.outcome }[kind];
  const completion = make("td", { class: "text" }, ...sample.segments.map(([version, text]) => shaded(version, text)));
  if (sample.approximate) completion.append(make("span", { class: "hint" }, " (cuts approximate)"));
  return make(
    "tr",
    {},
    make("td", { class: "text" }, sample.prompt),
    completion,
    make("td", { class: "text" }, sample.answer),
    make("td", { class: kind, title: sample.detail }, words, sample.style ? make("span", { class: "hint" }, ` ${sample.style}`) : null),
    make("td", { class: "figure" }, write.number(sample.advantage)),
    make("td", { class: "figure" }, String(sample.age)),
  );
}

function shaded(version, text) {
  if (version < 0) return make("span", { class: "environment", title: "written by the environment" }, text);
  const part = make("span", { class: "shade", title: `written by policy version ${version}` }, make("sup", {}, String(version)), text);
  part.style.setProperty("--colour", versionColour(version, darkScheme.matches));
  return part;
}
