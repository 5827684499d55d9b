// The embedded data and how its values are written: typed arrays, numbers, times, colours of versions.

function readData() {
  return JSON.parse(document.getElementById("data").textContent);
}

// A packed column ({kind, base64}) as a typed array.
function unpack(column) {
  const text = atob(column.base64);
  const bytes = new Uint8Array(text.length);
  for (let i = 0; i < text.length; i++) bytes[i] = text.charCodeAt(i);
  const types = { u1: Uint8Array, u2: Uint16Array, u4: Uint32Array, i4: Int32Array, f4: Float32Array };
  return new types[column.kind](bytes.buffer);
}

const ABSENT = "–";

const write = {
  number: (value) => {
    if (value == null) return ABSENT;
    if (value === 0) return "0";
    const size = Math.abs(value);
    if (size >= 1e4) return Math.round(value).toLocaleString("en");
    if (size < 1e-3) return value.toExponential(1).replace("-", "−");
    return String(Number(value.toPrecision(3))).replace("-", "−");
  },
  percent: (value) => (value == null ? ABSENT : `${Math.round(value * 100)} %`),
  thousands: (value) => (value == null ? ABSENT : value >= 1000 ? `${Number((value / 1000).toPrecision(3))} k` : String(Number(value.toPrecision(3)))),
  whole: (value) => (value == null ? ABSENT : Math.round(value).toLocaleString("en")),
  // Seconds of the run's clock, as exact as `span` (the width of the view) makes sense of.
  time: (value, span = 60) => {
    if (value == null) return ABSENT;
    const digits = span < 0.05 ? 3 : span < 0.5 ? 2 : span < 6 ? 1 : 0;
    if (span < 600) return `${value.toFixed(digits)} s`;
    const minutes = Math.floor(value / 60);
    const rest = String(Math.round(value % 60)).padStart(2, "0");
    return span < 36000 ? `${minutes}:${rest}` : `${Math.floor(minutes / 60)}:${String(minutes % 60).padStart(2, "0")} h`;
  },
};

// An element: tag, properties or attributes, children.
function make(tag, properties = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (name === "class") element.className = value;
    else if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (value === true) element.setAttribute(name, "");
    else if (value !== false && value != null) element.setAttribute(name, value);
  }
  element.append(...children.filter((child) => child != null));
  return element;
}

// Version colours: eight hues around a perceptual circle (OKLCH), three places apart from one version to the next and in turn
// lighter and darker, so that neighbours always differ; the ninth version has the first colour again.
const VERSION_COLOURS = 8;

function versionColour(version, dark) {
  const place = ((version % VERSION_COLOURS) + VERSION_COLOURS) % VERSION_COLOURS;
  const hue = 255 + ((place * 3) % VERSION_COLOURS) * (360 / VERSION_COLOURS);
  const lightness = (dark ? 0.66 : 0.62) + (place % 2 ? 0.12 : 0);
  return oklch(lightness, 0.125, hue);
}

// OKLCH to sRGB as "#rrggbb" (Ottosson, 2020).
function oklch(lightness, chroma, hue) {
  const a = chroma * Math.cos((hue * Math.PI) / 180);
  const b = chroma * Math.sin((hue * Math.PI) / 180);
  const long = (lightness + 0.3963377774 * a + 0.2158037573 * b) ** 3;
  const medium = (lightness - 0.1055613458 * a - 0.0638541728 * b) ** 3;
  const short = (lightness - 0.0894841775 * a - 1.291485548 * b) ** 3;
  const linear = [
    4.0767416621 * long - 3.3077115913 * medium + 0.2309699292 * short,
    -1.2684380046 * long + 2.6097574011 * medium - 0.3413193965 * short,
    -0.0041960863 * long - 0.7034186147 * medium + 1.707614701 * short,
  ];
  const channel = (value) => {
    const bounded = Math.min(1, Math.max(0, value));
    const gamma = bounded <= 0.0031308 ? 12.92 * bounded : 1.055 * bounded ** (1 / 2.4) - 0.055;
    return Math.round(gamma * 255).toString(16).padStart(2, "0");
  };
  return `#${linear.map(channel).join("")}`;
}

const darkScheme = window.matchMedia("(prefers-color-scheme: dark)");

// The one tooltip of the page, near the pointer and inside the window.
const tip = {
  show(event, ...content) {
    const box = document.getElementById("tip");
    box.replaceChildren(...content);
    box.hidden = false;
    const left = event.clientX + 16 + box.offsetWidth > window.innerWidth ? event.clientX - box.offsetWidth - 12 : event.clientX + 16;
    const top = Math.min(event.clientY + 14, window.innerHeight - box.offsetHeight - 8);
    box.style.transform = `translate(${Math.max(4, left)}px, ${Math.max(4, top)}px)`;
  },
  hide() {
    document.getElementById("tip").hidden = true;
  },
};
