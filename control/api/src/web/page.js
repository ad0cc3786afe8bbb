// The page of `vmlan web`. Names, hosts and reasons come from guests and operators: they become
// text nodes, never markup.
"use strict";

const KEPT = 120; // Readings in the plots.
const COLOURS = ["#1f77b4", "#ff7f0e", "#2ca02c", "#d62728", "#9467bd", "#8c564b", "#e377c2",
  "#17becf"];
// A token may be base64: as in a form, an unescaped plus would be a space.
const token = new URLSearchParams(location.hash.slice(1).replaceAll("+", "%2B")).get("token");
const at = (id) => document.getElementById(id);
const known = { stats: null, read: 0, ports: [], leases: [], forwards: [] };
const past = new Map(); // Port: rates of frames from it.

// An element with attributes (or listeners) and children.
function make(name, attributes, ...children) {
  const svg = ["svg", "g", "line", "circle", "polyline", "text", "rect"].includes(name);
  const space = svg ? "http://www.w3.org/2000/svg" : "http://www.w3.org/1999/xhtml";
  const made = document.createElementNS(space, name);
  for (const [key, value] of Object.entries(attributes || {})) {
    if (typeof value === "function") made.addEventListener(key, value);
    else made.setAttribute(key, value);
  }
  made.append(...children.flat(2));
  return made;
}

const show = (id, ...children) => at(id).replaceChildren(...children.flat(2));
const none = (text) => make("p", { class: "none" }, text);

// 1234567 as 1.23 M.
function si(x) {
  const units = [[1e9, " G"], [1e6, " M"], [1e4, " k", 1e3]];
  const found = units.find(([from]) => x >= from);
  return found ? (x / (found[2] || found[0])).toFixed(2) + found[1] : x.toFixed(0);
}

const percent = (share) => (100 * share).toFixed(1) + " %";

async function call(method, path, body) {
  const headers = body ? { "content-type": "application/json" } : {};
  if (token) headers.authorization = "Bearer " + token;
  const answer = await fetch(path, { method, headers, body: body && JSON.stringify(body) });
  const text = await answer.text();
  if (answer.ok) return text ? JSON.parse(text) : null;
  let why = answer.status + " " + answer.statusText;
  try { why = JSON.parse(text).error || why; } catch { /* not the API's words */ }
  throw new Error(why);
}

// What is wrong: with reading, until that works again; with a change, until the next one.
const wrong = { reading: null, change: null };

function tell(what, error) {
  wrong[what] = error && error.message;
  at("news").textContent = [wrong.change, wrong.reading].filter((text) => text).join(" · ");
}

// What a port did between two readings, a second; null before there are two.
function rates(now, before, seconds) {
  if (!before || seconds <= 0) return null;
  const grown = (a, b) => (a >= b ? a - b : a) / seconds;
  const flow = (way) => ({
    frames: grown(now[way].frames, before[way].frames),
    bits: 8 * grown(now[way].bytes, before[way].bytes),
  });
  const sum = (counts) => Object.values(counts).reduce((a, b) => a + b, 0);
  const accesses = (port) => port.device
    ? Object.values(port.device.registers).reduce((a, r) => a + r.reads + r.writes, 0)
    : port.doorbells;
  return {
    in: flow("in"),
    out: flow("out"),
    drops: grown(sum(now.drops), sum(before.drops)),
    exits: grown(accesses(now), accesses(before)),
    interrupts: grown(now.interrupts, before.interrupts),
    work: grown(now.work_ns, before.work_ns) / 1e9,
  };
}

function table(heads, rows, empty) {
  if (rows.length === 0) return none(empty);
  const head = ([text, left]) => make("th", left ? { class: "text" } : {}, text);
  return make("table", {}, make("tr", {}, heads.map(head)), rows);
}

const cell = (text, kind) => make("td", kind ? { class: kind } : {}, text);

// --- the parts of the page

function totals(stats, all) {
  const sum = (of) => all.reduce((a, p) => a + (p.rates ? of(p.rates) : 0), 0);
  const up = stats.ports.filter((p) => p.up).length;
  at("totals").textContent = `${stats.ports.length} ports, ${up} up · in ` +
    `${si(sum((r) => r.in.frames))} frames/s, ${si(sum((r) => r.in.bits))}bit/s · drops ` +
    `${si(sum((r) => r.drops))}/s · work ${percent(sum((r) => r.work))} · ` +
    `sandbox ${stats.sandbox}`;
}

function topology(all) {
  const [wide, high] = [600, 360];
  const lines = [], nodes = [];
  all.forEach(({ port, rates }, i) => {
    const angle = 2 * Math.PI * i / all.length - Math.PI / 2;
    const [x, y] = [wide / 2 + 215 * Math.cos(angle), high / 2 + 135 * Math.sin(angle)];
    const frames = rates ? rates.in.frames + rates.out.frames : 0;
    const width = port.up ? 1 + Math.log10(1 + frames) : 1;
    lines.push(make("line", { x1: wide / 2, y1: high / 2, x2: x, y2: y, "stroke-width": width,
      stroke: rates && rates.drops > 0 ? "var(--bad)" : "currentColor",
      "stroke-dasharray": port.up ? "none" : "4 4", opacity: port.up ? 0.6 : 0.3 }));
    // Words stand on the side where no line is.
    const words = y < high / 2 ? y - 27 : y + 22;
    nodes.push(make("circle", { cx: x, cy: y, r: 7, fill: port.up ? "var(--out)" : "#888" }),
      make("text", { x, y: words, "text-anchor": "middle" }, port.name),
      make("text", { x, y: words + 15, "text-anchor": "middle", opacity: 0.7 },
        frames > 0 ? si(frames) + "/s" : port.kind));
  });
  const middle = [make("rect", { x: wide / 2 - 38, y: high / 2 - 16, width: 76, height: 32, rx: 6,
    fill: "var(--in)" }), make("text", { x: wide / 2, y: high / 2 + 4, "text-anchor": "middle",
    style: "fill: #fff" }, "switch")];
  show("topology", make("svg", { viewBox: `0 0 ${wide} ${high}`, role: "img" },
    lines, nodes, middle));
}

function plot() {
  const [wide, high] = [600, 320];
  const loud = [...past].map(([name, rates]) => [name, rates, Math.max(...rates)])
    .sort((a, b) => b[2] - a[2]).slice(0, COLOURS.length).filter(([, , most]) => most > 0);
  if (loud.length === 0) return show("rates", none("No port has sent a frame yet."));
  const most = loud[0][2];
  const x = (i, n) => wide - (n - 1 - i) * wide / (KEPT - 1);
  const lines = loud.map(([, rates], i) => make("polyline", { fill: "none", "stroke-width": 2,
    stroke: COLOURS[i], points: rates.map((rate, k) =>
      `${x(k, rates.length)},${high - 4 - (high - 24) * rate / most}`).join(" ") }));
  const keys = loud.map(([name], i) =>
    [make("span", { class: "key", style: "background:" + COLOURS[i] }), name]);
  show("rates", make("svg", { viewBox: `0 0 ${wide} ${high}`, role: "img" },
    make("text", { x: 4, y: 14 }, si(most) + " frames/s"), lines), make("div", {}, keys));
}

function ports(all) {
  const heads = [["Port", 1], ["Kind", 1], ["Link", 1], ["In frames/s"], ["In bit/s"],
    ["Out frames/s"], ["Out bit/s"], ["Drops/s"], ["Exits/s"], ["Interrupts/s"], ["Work"],
    ["Faults"]];
  const row = ({ port, rates }) => {
    const r = rates || { in: { frames: 0, bits: 0 }, out: { frames: 0, bits: 0 }, drops: 0,
      exits: 0, interrupts: 0, work: 0 };
    const numbers = [r.in.frames, r.in.bits, r.out.frames, r.out.bits].map((n) => cell(si(n)));
    const remove = token ? [make("td", {}, make("button", { click: () => removePort(port.name) },
      "Remove"))] : [];
    return make("tr", port.up ? {} : { class: "down" }, cell(port.name, "text"),
      cell(port.kind, "text"), cell(port.up ? "up" : "down", "text"), numbers,
      cell(si(r.drops), r.drops > 0 ? "bad" : ""), cell(si(r.exits)), cell(si(r.interrupts)),
      cell(percent(r.work)), cell(String(port.faults), port.faults > 0 ? "bad" : ""), remove);
  };
  show("ports", table(heads, all.map(row), "There are no ports."));
}

// How a port's guest is told of things.
function technique(name) {
  const port = known.ports.find((p) => p.name === name);
  if (!port) return "";
  const key = (word) => (port.address.match(new RegExp("," + word + "=([^,]*)")) || [])[1];
  if (port.kind !== "vfio-user") return port.kind === "vhost-user" ? "virtio" : port.kind;
  const model = key("model") || "e1000";
  if (/,csb(,|$)/.test(port.address)) return model + ", CSB";
  return model + (key("doorbell") === "mapped" ? ", mapped" : "");
}

function costs(all) {
  const busy = all.map(({ port, rates }) => {
    const frames = rates ? rates.in.frames + rates.out.frames : 0;
    return frames > 0 && [port.name, 1000 * rates.exits / frames, 1000 * rates.interrupts / frames];
  }).filter((cost) => cost);
  const most = Math.max(1, ...busy.map(([, exits, interrupts]) => Math.max(exits, interrupts)));
  const bar = (n, colour) => make("td", { class: "text" }, make("span", { class: "bar",
    style: `width: ${100 * n / most}px; background: var(${colour})` }), " " + n.toFixed(1));
  const row = ([name, exits, interrupts]) => make("tr", {}, cell(name, "text"),
    cell(technique(name), "text"), bar(exits, "--in"), bar(interrupts, "--out"));
  const heads = [["Port", 1], ["Technique", 1], ["Exits", 1], ["Interrupts", 1]];
  show("costs", table(heads, busy.map(row), "No frames pass."));
}

function drops(stats) {
  const rows = stats.ports.flatMap((port) => Object.entries(port.drops)
    .sort((a, b) => b[1] - a[1])
    .map(([reason, n]) => make("tr", {}, cell(port.name, "text"), cell(reason, "text"),
      cell(n.toLocaleString("en")))));
  show("drops", table([["Port", 1], ["Reason", 1], ["Frames"]], rows, "Nothing was dropped."));
}

function leases() {
  const row = (l) => make("tr", {}, [l.ip, l.mac, l.port, l.hostname || "", l.net]
    .map((text) => cell(text, "text")), cell(l.seconds + " s"));
  const heads = [["Address", 1], ["MAC", 1], ["Port", 1], ["Host", 1], ["Net", 1], ["Left"]];
  show("leases", table(heads, known.leases.map(row), "No gateway has given an address."));
}

function forwards() {
  const row = (f) => make("tr", {}, [f.forward, f.state, f.net].map((text) => cell(text, "text")),
    token ? [make("td", {}, make("button", { click: () => forward(f.net, null, f.forward) },
      "Remove"))] : []);
  const heads = [["Forward", 1], ["State", 1], ["Net", 1]];
  show("forwards", table(heads, known.forwards.map(row), "No port of the host leads to a VM."));
}

// --- what changes something: only with the token

async function change(method, path, body) {
  try {
    await call(method, path, body);
    tell("change", null);
    await further();
  } catch (error) { tell("change", error); }
}

function removePort(name) {
  if (confirm(`Remove port ${name}? Its VM loses the link.`)) {
    change("DELETE", "v1/ports/" + encodeURIComponent(name));
  }
}

// Adds or removes a forward. The port's key holds all of them, and somebody else may have changed it
// since it was shown.
async function forward(net, add, remove) {
  try { await further(); } catch (error) { return tell("change", error); }
  const left = known.forwards.filter((f) => f.net === net && f.forward !== remove)
    .map((f) => f.forward);
  const all = (add ? left.concat(add) : left).join("+");
  await change("PATCH", "v1/ports/" + encodeURIComponent(net), { forward: all });
}

function form(id, hint, label, submit) {
  const input = make("input", { placeholder: hint, "aria-label": label });
  show(id, make("form", { submit: (event) => {
    event.preventDefault();
    submit(input.value.trim());
  } }, input, make("button", {}, label)));
}

function forms() {
  form("change", "NAME=KIND:PLACE[,KEY=VALUE...] adds a port; NAME KEY=VALUE changes one",
    "Add or change", (text) => {
      const set = text.match(/^(\S+)\s+([a-z_]+)=(.*)$/);
      if (set) {
        return change("PATCH", "v1/ports/" + encodeURIComponent(set[1]), { [set[2]]: set[3] });
      }
      const [, name, address] = text.match(/^([^=:]+)=(.*)$/) || [];
      if (!name) return tell("change", new Error("write it like vm3=vhost-user:/tmp/vm3.sock"));
      change("POST", "v1/ports", { name, address });
    });
  form("forward", "2222:vm1:22", "Add a forward", (text) => {
    const net = known.ports.find((p) => p.kind === "nat");
    const hint = "there is no gateway: add a port net=nat:10.77.0.0/24";
    if (!net) return tell("change", new Error(hint));
    forward(net.name, text, null);
  });
}

// --- reading

async function counters() {
  const stats = await call("GET", "v1/stats");
  const now = performance.now();
  const before = new Map((known.stats ? known.stats.ports : []).map((p) => [p.name, p]));
  const seconds = (now - known.read) / 1000;
  const all = stats.ports.map((port) =>
    ({ port, rates: rates(port, before.get(port.name), seconds) }));
  for (const name of past.keys()) {
    if (!stats.ports.some((p) => p.name === name)) past.delete(name);
  }
  for (const { port, rates } of all.filter((p) => p.rates)) {
    past.set(port.name, (past.get(port.name) || []).concat(rates.in.frames).slice(-KEPT));
  }
  known.stats = stats;
  known.read = now;
  totals(stats, all);
  topology(all);
  plot();
  ports(all);
  costs(all);
  drops(stats);
}

async function further() {
  known.ports = (await call("GET", "v1/ports")).ports;
  known.leases = (await call("GET", "v1/leases")).leases;
  known.forwards = (await call("GET", "v1/forwards")).forwards;
  leases();
  forwards();
}

async function watch(read, every) {
  for (;;) {
    // A page that nobody sees asks for nothing.
    if (!document.hidden) {
      try {
        await read();
        if (read === counters) tell("reading", null);
      } catch (error) { tell("reading", error); }
    }
    await new Promise((done) => setTimeout(done, every));
  }
}

if (token) forms();
watch(counters, 1000);
watch(further, 5000);
