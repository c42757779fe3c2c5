"use strict";
// Polls /status, whose counts only grow, and draws the differences. Plain JavaScript, no library.
const EVERY = 2000, KEEP = 90; // milliseconds, points
const $ = (id) => document.getElementById(id);
const points = [];
let last = null, known = "";

function make(tag, properties = {}, ...children) {
  const element = Object.assign(document.createElement(tag), properties);
  element.append(...children);
  return element;
}

function say(value, unit = "") {
  if (value === null || !Number.isFinite(value)) return "–";
  const digits = value >= 100 ? 0 : value >= 10 ? 1 : 2;
  return value.toLocaleString("en", { maximumFractionDigits: digits }) + unit;
}

function headers() {
  const key = sessionStorage.getItem("key");
  return key ? { authorization: "Bearer " + key } : {};
}

// --- figures ---------------------------------------------------------------------------------

/** The latency (ms) that a share of the new requests did not pass, from cumulative buckets. */
function percentile(now, before, share) {
  const counts = now.map(([bound, n], i) => [bound, n - (before[i] ? before[i][1] : 0)]);
  const all = counts.length ? counts[counts.length - 1][1] : 0;
  if (!all) return null;
  let low = 0, below = 0;
  for (const [bound, n] of counts) {
    if (n >= share * all) {
      if (bound === null) return 1000 * low; // past the last bound: at least that
      return 1000 * (low + (bound - low) * (n > below ? (share * all - below) / (n - below) : 1));
    }
    [low, below] = [bound, n];
  }
  return null;
}

function total(counts, accept = () => true) {
  return Object.entries(counts).reduce((sum, [code, n]) => sum + (accept(code) ? n : 0), 0);
}

const failed = (code) => !["200", "OK", "0"].includes(code);

function difference(now, before) {
  const seconds = now.uptime - before.uptime; // the clock may jump
  const rate = (value) => Math.max(0, value(now) - value(before)) / seconds;
  return {
    requests: rate((s) => total(s.requests)),
    failed: rate((s) => total(s.requests, failed)),
    texts: rate((s) => s.texts),
    tokens: rate((s) => s.tokens),
    padding: rate((s) => s.padding),
    p50: percentile(now.latency, before.latency, 0.5),
    p99: percentile(now.latency, before.latency, 0.99),
    queue: now.queued_tokens,
    cpu: rate((s) => s.cpu_seconds),
  };
}

function showTiles(status, point) {
  $("state").textContent = status.ready ? "ready" : "not ready";
  $("state").className = "pill " + (status.ready ? "good" : "busy");
  const minutes = Math.floor(status.uptime / 60);
  const up = minutes < 60 ? `${minutes} min` : `${Math.floor(minutes / 60)} h ${minutes % 60} min`;
  $("about").textContent = `version ${status.fleetbert} · up for ${up}`;
  $("queue").textContent = say(status.queued_tokens);
  $("memory").textContent = `of ${status.processors} busy · ${say(status.resident_bytes / 1e6, " MB")}`;
  if (!point) return;
  $("requests").textContent = say(point.requests);
  $("failed").textContent = point.failed ? `${say(point.failed)} failed` : "none failed";
  $("texts").textContent = say(point.texts);
  const all = point.tokens + point.padding;
  $("tokens").textContent = all ? `${say((100 * point.padding) / all, " %")} padding` : "\u00a0";
  $("p50").textContent = say(point.p50, point.p50 === null ? "" : " ms");
  $("p99").textContent = say(point.p99, point.p99 === null ? "" : " ms");
  $("cpu").textContent = say(point.cpu);
}

// --- charts ----------------------------------------------------------------------------------

const CHARTS = [
  { title: "Requests", unit: "a second", lines: [["requests", "all"], ["failed", "failed"]], fill: true },
  { title: "Texts", unit: "a second", lines: [["texts", "texts"]], fill: true },
  { title: "Latency", unit: "ms", lines: [["p50", "p50"], ["p99", "p99"]] },
  { title: "Queue", unit: "tokens waiting", lines: [["queue", "tokens"]], fill: true },
];
const WIDTH = 440, HEIGHT = 150, LEFT = 44, BOTTOM = 18, TOP = 8;

function svg(tag, attributes, text = "") {
  const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.textContent = text;
  return element;
}

/** The next of 1, 2, 5, 10, ...; 1 where nothing was. */
function above(value) {
  if (!(value > 0)) return 1;
  const power = 10 ** Math.floor(Math.log10(value));
  return [1, 2, 5, 10].map((n) => n * power).find((n) => n >= value);
}

function draw(chart) {
  const values = points.flatMap((p) => chart.lines.map(([name]) => p[name])).filter((v) => v !== null);
  const top = above(Math.max(...values));
  const x = (i) => LEFT + ((WIDTH - LEFT - 4) * (i + KEEP - points.length)) / (KEEP - 1);
  const y = (v) => TOP + (HEIGHT - TOP - BOTTOM) * (1 - v / top);
  const parts = [0, 0.5, 1].flatMap((share) => [
    svg("line", { class: "grid", x1: LEFT, x2: WIDTH - 4, y1: y(share * top), y2: y(share * top) }),
    svg("text", { x: LEFT - 6, y: y(share * top) + 4, "text-anchor": "end" }, say(share * top)),
  ]);
  const ago = ((KEEP - 1) * EVERY) / 60000;
  parts.push(
    svg("text", { x: LEFT, y: HEIGHT - 3 }, `${ago.toFixed(0)} min ago`),
    svg("text", { x: WIDTH - 4, y: HEIGHT - 3, "text-anchor": "end" }, "now"),
  );
  chart.lines.forEach(([name], number) => {
    let path = "", start = null, end = 0;
    points.forEach((p, i) => {
      if (p[name] === null) return (start = null); // a gap: nothing was asked
      const place = `${x(i).toFixed(1)} ${y(p[name]).toFixed(1)}`;
      path += start === null ? `M${place}h0` : `L${place}`; // h0: a point alone is a dot
      if (start === null) start = i;
      end = i;
    });
    if (!path) return;
    if (chart.fill && number === 0) {
      parts.push(svg("path", { class: "area", d: `${path}L${x(end)} ${y(0)}L${x(start)} ${y(0)}Z` }));
    }
    parts.push(svg("path", { class: "c" + number, d: path }));
  });
  chart.svg.replaceChildren(...parts);
}

function addCharts() {
  for (const chart of CHARTS) {
    chart.svg = svg("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img", "aria-label": chart.title });
    const caption = make("figcaption", {}, chart.title, make("span", { textContent: chart.unit }));
    if (chart.lines.length > 1) {
      const names = chart.lines.map(([, name], i) => make("b", { className: "c" + i, textContent: name }));
      caption.append(make("span", { className: "legend" }, ...names));
    }
    $("charts").append(make("figure", {}, caption, chart.svg));
    draw(chart);
  }
}

// --- models ----------------------------------------------------------------------------------

const PILLS = {
  READY: "good", QUEUED: "busy", LOADING: "busy", DRAINING: "busy", REPLACED: "", UNLOADED: "", UNAVAILABLE: "bad",
};

function accuracies(variant) {
  const found = variant.accuracy;
  if (found === null || found === undefined) return "–";
  const percent = (value) => (100 * value).toFixed(2) + " %";
  if (typeof found === "number") return variant.metric === "accuracy" ? percent(found) : found.toFixed(4);
  const list = Array.isArray(found) ? found : [found];
  const names = list.map((a) => `${percent(a.accuracy)} (${a.data.split("/").pop()}, ${a.n})`);
  return names.join(", ") || "–";
}

function variantTable(version) {
  const heads = ["variant", "kind", version.variants[0].metric, "texts/s here"];
  const rows = version.variants.map((variant) =>
    make(
      "tr",
      { className: variant.name === version.variant ? "chosen" : "" },
      make("th", { textContent: variant.name }),
      make("td", { className: "kind", textContent: variant.kind || "–" }),
      make("td", { textContent: accuracies(variant) }),
      make("td", { textContent: variant.texts_per_s ? say(variant.texts_per_s) : "–" }),
    ),
  );
  const head = heads.map((name) => make("th", { className: name, textContent: name }));
  return make("table", {}, make("thead", {}, make("tr", {}, ...head)), make("tbody", {}, ...rows));
}

function versionPart(version) {
  const title = make("h4", {}, `version ${version.version}`);
  title.append(make("span", { className: "pill " + PILLS[version.state], textContent: version.state.toLowerCase() }));
  for (const alias of version.aliases) title.append(make("span", { className: "pill", textContent: alias }));
  const parts = [title];
  const tone = version.state === "UNAVAILABLE" ? "reason" : "muted";
  if (version.reason) parts.push(make("p", { className: tone, textContent: version.reason }));
  if (version.state === "READY") {
    const shown = version.labels.slice(0, 12).join(", ") + (version.labels.length > 12 ? ", …" : "");
    const what = version.labels.length ? `${version.labels.length} labels: ${shown}` : version.task.replace("pair_", "");
    const text = `${version.pair ? "pairs of texts" : "texts"} → ${what}`;
    const more = `${version.layers} layers, at most ${version.max_length} tokens, ${say(version.texts)} texts answered`;
    parts.push(make("p", { className: "muted", textContent: `${text} · ${more}` }));
  }
  if (version.variants.length) parts.push(variantTable(version));
  return make("div", {}, ...parts);
}

function showModels(models) {
  const text = JSON.stringify(models);
  if (text === known) return;
  known = text;
  const cards = models.map((model) =>
    make("div", { className: "card model" }, make("h3", { textContent: model.name }), ...model.versions.map(versionPart)),
  );
  if (cards.length) $("models").replaceChildren(...cards);
  const chosen = $("model").value;
  const options = models.flatMap((model) =>
    model.versions
      .filter((version) => version.state === "READY")
      .map((version) => {
        const name = `${model.name}/versions/${version.version}`;
        const option = make("option", { value: name, textContent: `${model.name}, version ${version.version}` });
        option.dataset.pair = version.pair ? "1" : "";
        option.dataset.questions = version.outputs.includes("answer") ? "1" : "";
        option.dataset.vectors = version.outputs.includes("embedding") ? "1" : "";
        const variant = version.variants.find((one) => one.name === version.variant);
        const speed = variant ? variant.speed : null; // only variants with early exit have one
        option.dataset.early = typeof speed === "number" ? "1" : "";
        option.dataset.speed = option.dataset.early ? speed : "";
        return option;
      }),
  );
  // Under load the counts change at every look, and a list that is open would close.
  if (options.map((one) => one.outerHTML).join() === [...$("model").options].map((one) => one.outerHTML).join()) return;
  $("model").replaceChildren(...options);
  if (options.some((option) => option.value === chosen)) $("model").value = chosen;
  if ($("model").value === chosen) fitForm();
  else chooseModel();
}

// --- trying a text ---------------------------------------------------------------------------

function chooseModel() {
  const option = $("model").selectedOptions[0];
  if (option && option.dataset.early) $("speed").value = option.dataset.speed;
  fitForm();
}

function fitForm() {
  const option = $("model").selectedOptions[0];
  $("pair").hidden = !(option && (option.dataset.pair || option.dataset.vectors));
  const asks = option && option.dataset.questions;
  $("text-name").textContent = asks ? "Question" : "Text";
  $("pair-name").textContent = asks ? "Context" : "Second text";
  $("speed-label").hidden = !(option && option.dataset.early);
  $("speed-value").textContent = Number($("speed").value).toFixed(2);
}

function texts(name, ...values) {
  return { name, shape: [values.length], datatype: "BYTES", data: values };
}

async function ask() {
  $("ask").disabled = true;
  $("wait").textContent = "…";
  $("problem").hidden = $("answer").hidden = true;
  try {
    const both = [$("text").value, $("text-pair").value];
    const vectors = $("model").selectedOptions[0]?.dataset.vectors; // of two texts, to compare them
    const body = { inputs: vectors ? [texts("text", ...both)] : [texts("text", both[0])] };
    if (!$("pair").hidden && !vectors) body.inputs.push(texts("text_pair", both[1]));
    if (!$("speed-label").hidden) body.parameters = { speed: Number($("speed").value) };
    const model = $("model").value.split("/");
    if (model.length < 3) throw new Error("no model is ready yet");
    const path = `v2/models/${encodeURIComponent(model[0])}/versions/${encodeURIComponent(model[2])}/infer`;
    const began = performance.now();
    const reply = await fetch(path, {
      method: "POST",
      headers: { "content-type": "application/json", ...headers() },
      body: JSON.stringify(body),
    });
    const found = await reply.json();
    if (!reply.ok) throw new Error(found.error || `status ${reply.status}`);
    showAnswer(found, performance.now() - began, body.inputs[body.inputs.length - 1].data[0]);
  } catch (error) {
    $("problem").textContent = error.message;
    $("problem").hidden = false;
  } finally {
    $("ask").disabled = false;
    $("wait").textContent = "";
  }
}

// Offsets count characters, which a string of this language has one or two units for.
function tagged(text, spans) {
  const letters = Array.from(text);
  const kinds = [...new Set(spans.map((s) => s.kind))];
  const parts = [];
  let at = 0;
  for (const span of spans) {
    parts.push(letters.slice(at, span.start).join(""));
    const words = letters.slice(span.start, span.end).join("");
    const kind = make("small", { textContent: span.kind });
    const title = `${span.kind}, ${(100 * span.score).toFixed(2)} %`;
    const hue = { className: `span k${kinds.indexOf(span.kind) % 6}`, title };
    parts.push(make("mark", hue, words, kind));
    at = span.end;
  }
  return [...parts, letters.slice(at).join("")];
}

// The spans of a text, or where the context has the answer.
function spansOf(output) {
  if (output.spans) return JSON.parse(output.spans[0]);
  const answer = JSON.parse(output.answer[0]);
  return answer.text === null ? [] : [{ ...answer, kind: "answer" }];
}

function headline(output) {
  if (output.answer) return JSON.parse(output.answer[0]).text ?? "no answer";
  if (output.spans) return JSON.parse(output.spans[0]).length + " spans";
  if (output.embedding) return `similarity ${similarity(output.embedding).toFixed(4)}`;
  if (output.label) return output.label[0];
  if (output.labels) return JSON.parse(output.labels[0]).join(", ") || "no label";
  return (output.probability || output.values)[0].toPrecision(5);
}

// The cosine of two vectors of length 1, which stand one after the other.
function similarity(numbers) {
  const width = numbers.length / 2;
  return numbers.slice(0, width).reduce((sum, number, i) => sum + number * numbers[width + i], 0);
}

function showAnswer(found, milliseconds, text) {
  const output = Object.fromEntries(found.outputs.map((o) => [o.name, o.data.flat()]));
  const [name, number] = $("model").value.split("/versions/");
  const version = last && last.models.find((m) => m.name === name).versions.find((v) => v.version === number);
  const labels = version ? version.labels : [];
  $("label").textContent = headline(output);
  const layer = output.exit_layer ? `left after layer ${output.exit_layer[0]}` : "";
  const of = version && layer ? ` of ${version.layers}` : "";
  const time = `${say(milliseconds, " ms")} to here and back`;
  $("how").textContent = layer ? `${layer}${of} · ${time}` : time;
  $("spans").hidden = !(output.spans || output.answer);
  $("spans").replaceChildren(...($("spans").hidden ? [] : tagged(text, spansOf(output))));
  const rows = (output.scores || [])
    .map((score, i) => [labels[i] ?? String(i), score])
    .sort((a, b) => b[1] - a[1])
    .map(([label, score]) => {
      const bar = make("div");
      bar.style.width = `${100 * score}%`;
      return make(
        "tr",
        {},
        make("td", { textContent: label }),
        make("td", { textContent: (100 * score).toFixed(2) + " %" }),
        make("td", { className: "bar" }, bar),
      );
    });
  $("scores").replaceChildren(...rows);
  $("answer").hidden = false;
}

// --- the loop --------------------------------------------------------------------------------

async function poll() {
  try {
    const reply = await fetch("status", { headers: headers() });
    $("key").hidden = reply.status !== 401;
    if (!reply.ok) throw new Error(`status ${reply.status}`);
    const status = await reply.json();
    const point = last && status.uptime > last.uptime ? difference(status, last) : null;
    if (last && status.uptime < last.uptime) points.length = 0; // another process answers now
    else if (point) points.push(point);
    points.splice(0, points.length - KEEP);
    last = status;
    showTiles(status, point);
    showModels(status.models);
    CHARTS.forEach(draw);
  } catch (error) {
    $("state").textContent = "no answer";
    $("state").className = "pill bad";
  }
}

async function start() {
  addCharts();
  $("model").addEventListener("change", chooseModel);
  $("speed").addEventListener("input", fitForm);
  $("try").addEventListener("submit", (event) => {
    event.preventDefault();
    ask();
  });
  $("key").addEventListener("submit", (event) => {
    event.preventDefault();
    sessionStorage.setItem("key", $("key-text").value.trim());
    poll();
  });
  await poll();
  // A link may bring a text, and name a model: /?text=What+a+film&model=sst2
  const words = new URLSearchParams(location.search);
  const options = [...$("model").options];
  const wanted = options.filter((option) => option.value.startsWith(words.get("model") + "/"));
  if (wanted.length) wanted[wanted.length - 1].selected = true;
  chooseModel();
  if (words.get("text")) {
    $("text").value = words.get("text");
    await ask();
  }
  setInterval(poll, EVERY);
}

start();
