// What the page shows: polls the server for JSON and draws it. No build step, no library.
"use strict";

const LOOK_MS = 1000;
const HISTORY = 120;
const PAGE = matchMedia("(max-width: 800px)").matches ? 15 : 50; // records at a time
const $ = (id) => document.getElementById(id);
const histories = new Map(); // of each log: [{at, limit, bytes}]
let shown = null; // {kind, name}
let browsed = null; // the last page of records
let looks = 0;

// -- small things -------------------------------------------------------------

const count = (n) => (n === null || n === undefined ? "–" : Math.round(n).toLocaleString("en-US").replaceAll(",", "\u202f"));

function bytes(n) {
  if (n === null || n === undefined) return "–";
  let unit = 0;
  for (; n >= 1024 && unit < 4; unit++) n /= 1024;
  return `${unit ? n.toFixed(1) : Math.round(n)} ${["B", "KiB", "MiB", "GiB", "TiB"][unit]}`;
}

const moment = (us) => new Date(us / 1000).toISOString().replace("T", " ").replace("Z", " UTC");

function make(tag, attributes = {}, ...children) {
  const svg = ["rect", "line", "path", "text", "title", "g"].includes(tag);
  const made = svg ? document.createElementNS("http://www.w3.org/2000/svg", tag) : document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  made.append(...children);
  return made;
}

function table(heads, rows) {
  const numeric = (at) => rows.every((row) => typeof row[at] === "string" && /^[\d\u202f–.]+$/.test(row[at]));
  const style = heads.map((_, at) => (rows.length && numeric(at) ? { class: "number" } : {}));
  const head = make("thead", {}, make("tr", {}, ...heads.map((text, at) => make("th", style[at], text))));
  const body = rows.map((row) => make("tr", {}, ...row.map((cell, at) => make("td", { ...style[at], "data-head": heads[at] }, cell))));
  return make("table", {}, head, make("tbody", {}, ...body));
}

function figures(place, pairs) {
  place.replaceChildren(
    ...pairs.map(([name, text]) => make("div", { class: "figure" }, make("b", {}, text), make("span", {}, name))),
  );
}

async function ask(path) {
  const token = sessionStorage.getItem("token");
  const headers = token ? { Authorization: `Bearer ${token}` } : {};
  const answer = await fetch(path, { headers, cache: "no-store" });
  if (answer.status === 401) {
    $("login").hidden = false;
    throw new Error("a token is needed");
  }
  const found = await answer.json();
  if (!answer.ok) throw new Error(found.error);
  $("login").hidden = true;
  return found;
}

// -- choosing -----------------------------------------------------------------

function chosen() {
  const [kind, ...name] = decodeURIComponent(location.hash.slice(1)).split("/");
  return name.length ? { kind, name: name.join("/") } : null;
}

function link(kind, name, failed) {
  const attributes = { href: `#${kind}/${encodeURIComponent(name)}` };
  if (shown && shown.kind === kind && shown.name === name) attributes["aria-current"] = "page";
  if (failed) attributes.class = "failed";
  return make("a", attributes, name);
}

async function look_around() {
  const { logs, collections, cluster, count: all } = await ask("/v1/look");
  if (!chosen() && cluster) history.replaceState(null, "", "#cluster/machines");
  if (!chosen() && logs.length) history.replaceState(null, "", `#log/${encodeURIComponent(logs[0].name)}`);
  const now = chosen();
  if (JSON.stringify(now) !== JSON.stringify(shown)) {
    shown = now;
    browsed = null;
    $("records").tBodies[0].replaceChildren();
    $("found").textContent = "";
    if (shown && shown.kind === "log") browse({}).catch(complain);
  }
  if (shown && shown.kind === "cluster" && cluster) show_cluster(cluster);
  const items = [make("h4", {}, `Logs ${count(all)}`), ...logs.map((log) => link("log", log.name, log.failed))];
  if (collections.length) items.push(make("h4", {}, "Collections"), ...collections.map((name) => link("collection", name)));
  if (cluster) items.unshift(make("h4", {}, "Cluster"), link("cluster", "machines"));
  $("logs").replaceChildren(...items);
  $("log").hidden = !shown || shown.kind !== "log";
  $("cluster").hidden = !shown || shown.kind !== "cluster";
  $("collection").hidden = !shown || shown.kind !== "collection";
}

// -- a log --------------------------------------------------------------------

function show_log(log) {
  const now = log.statistics;
  const past = histories.get(log.name) || [];
  const before = past.at(-1);
  const seconds = before ? log.at - before.at : 0;
  const sample = { at: log.at, limit: now.tail, bytes: now.appended_bytes, rate: 0 };
  let pace = 0;
  if (seconds > 0) {
    sample.rate = Math.max(0, now.tail - before.limit) / seconds;
    pace = Math.max(0, now.appended_bytes - before.bytes) / seconds;
  }
  past.push(sample);
  histories.set(log.name, past.slice(-HISTORY));

  $("name").textContent = log.name;
  $("trouble").textContent = [now.failure, now.tier_failure].filter(Boolean).join("; ");
  const pairs = [
    ["records", count(now.durable_limit - now.head)],
    ["records/s", count(sample.rate)],
    ["bytes/s", bytes(pace)],
    ["not synced", count(now.tail - now.durable_limit)],
    ["readers", count(now.readers)],
    ["slowest reader behind", count(now.reader_lag_records)],
    ["waiting callers", count(now.blocked_appends)],
  ];
  if (log.is_tiered) pairs.push(["not in the store", count(now.durable_limit - now.uploaded_limit)]);
  figures($("figures"), pairs);
  draw_pace(histories.get(log.name));
  draw_axis(log);
  $("retention").replaceChildren(...log.retention.map((text) => make("li", {}, text)));
  show_cursors(log);
  show_copies(now);
  show_groups(Object.values(now.groups));
}

function draw_pace(past) {
  const svg = $("pace");
  const width = svg.clientWidth || 900;
  svg.setAttribute("viewBox", `0 0 ${width} 60`);
  const most = Math.max(1, ...past.map((one) => one.rate));
  const x = (at) => (width * at) / (HISTORY - 1);
  const y = (rate) => 58 - (48 * rate) / most;
  const line = past.map((one, at) => `${at ? "L" : "M"}${x(at).toFixed(1)},${y(one.rate).toFixed(1)}`).join("");
  svg.replaceChildren(
    make("path", { d: line || "M0,58", fill: "none", stroke: "var(--disk)", "stroke-width": 1.5 }),
    make("text", { x: 0, y: 10 }, `${count(most)} records/s`),
  );
}

function draw_axis(log) {
  const svg = $("axis");
  const width = svg.clientWidth || 900;
  svg.classList.toggle("plain", !log.cursors.length);
  svg.setAttribute("viewBox", `0 0 ${width} ${log.cursors.length ? 132 : 80}`);
  const now = log.statistics;
  const low = now.head;
  const high = Math.max(now.tail, low + 1);
  const x = (offset) => (width * (Math.min(Math.max(offset, low), high) - low)) / (high - low);
  const bar = (one, y, color, what) => {
    const left = x(one.start);
    const box = make("rect", { x: left, y, width: Math.max(x(one.limit) - left - 1, 0.5), height: 16, fill: color, class: what });
    const size = one.size_bytes === null ? "" : `, ${bytes(one.size_bytes)}`;
    box.append(make("title", {}, `${one.kind} [${one.start}, ${one.limit})${size}`));
    return box;
  };
  const parts = [
    ...log.stored.map((one) => bar(one, 30, "var(--cloud)", "stored")),
    ...log.segments.map((one) => bar(one, 52, "var(--disk)", "segment")),
  ];
  const free = log.segments.filter((one) => one.kind === "sealed" && one.limit <= log.deletable_limit);
  for (const one of free) parts.push(make("rect", { x: x(one.start), y: 70, width: Math.max(x(one.limit) - x(one.start) - 1, 0.5), height: 4, fill: "var(--free)", class: "deletable" }));
  let last = -Infinity;
  let row = 0;
  for (const one of log.cursors.filter((each) => each.position !== null).sort((a, b) => a.position - b.position)) {
    const at = x(one.position);
    row = at - last < 90 ? (row + 1) % 3 : 0;
    last = at;
    const color = one.pins ? "var(--mark)" : "#888";
    const line = make("line", { x1: at, x2: at, y1: 24, y2: 84 + 14 * row, stroke: color, class: "cursor" });
    line.append(make("title", {}, `${one.name} at ${one.position}`));
    const anchor = at > width / 2 ? "end" : "start";
    parts.push(line, make("text", { x: at + (anchor === "end" ? -4 : 4), y: 88 + 14 * row, "text-anchor": anchor }, one.name));
  }
  parts.push(
    make("text", { x: 0, y: 14 }, String(low)),
    make("text", { x: width, y: 14, "text-anchor": "end" }, String(now.tail)),
  );
  svg.replaceChildren(...parts);
}

function show_cursors(log) {
  const limit = log.statistics.durable_limit;
  const pins = log.cursors.filter((one) => one.pins && one.position !== null).map((one) => one.position);
  const rows = log.cursors.map((one) => {
    if (one.problem) return [one.name, "–", "–", make("span", { class: "bad" }, one.problem)];
    const role = !one.pins ? "its lease ended" : one.position === Math.min(...pins) ? "holds retention back" : "";
    return [one.name, count(one.position), count(limit - one.position), role];
  });
  const parts = log.cursors_trouble ? [make("p", { class: "bad" }, log.cursors_trouble)] : [];
  if (rows.length) parts.push(table(["cursor", "position", "behind", ""], rows));
  $("cursors").replaceChildren(...(parts.length ? [make("h3", {}, "Cursors"), ...parts] : []));
}

function show_copies(now) {
  const rows = now.copies.map((one) => [
    one.address, one.is_present ? "yes" : make("span", { class: "bad" }, one.trouble ? `no: ${one.trouble}` : "no"),
    count(one.limit), count(one.lag),
  ]);
  const trouble = now.replication_trouble ? [make("p", { class: "bad" }, now.replication_trouble)] : [];
  $("copies").replaceChildren(
    ...(rows.length ? [make("h3", {}, "Copies"), ...trouble, table(["copy", "there", "has all below", "lag"], rows), ...scrub_of(now)] : []),
  );
}

function scrub_of(now) {
  const last = now.last_scrub;
  const texts = now.scrub ? [`${bytes(now.scrub.checked_bytes)} of ${bytes(now.scrub.total_bytes)} read`] : [];
  if (last) texts.push(`last round ended ${moment(last.ended_us)}`);
  const found = (last ? last.copies : []).filter((one) => one.damaged_segments || one.trouble).map((one) => {
    const left = Object.keys(one.left);
    const parts = [`${one.address || "this copy"}: damage in ${count(one.damaged_segments)} segments, ${bytes(one.mended_bytes)} replaced`];
    if (left.length) parts.push(`stays damaged: ${left.join(", ")}`);
    if (one.trouble) parts.push(`not all was checked: ${one.trouble}`);
    return make("p", { class: "bad" }, parts.join("; "));
  });
  return texts.length ? [make("p", { id: "scrub" }, `Scrub: ${texts.join(", ")}`), ...found] : [];
}

function show_groups(groups) {
  const heads = ["group", "floor", "lag", "pending", "unsettled", "delivered", "again", "dead letters"];
  const rows = groups.map((one) => [
    one.name, count(one.floor), count(one.lag), count(one.pending), count(one.unsettled),
    count(one.delivered), count(one.redelivered), count(one.dead),
  ]);
  $("groups").replaceChildren(...(rows.length ? [make("h3", {}, "Groups"), table(heads, rows)] : []));
}

// -- records ------------------------------------------------------------------

const text_of = (found) => (found === null ? "" : "text" in found ? found.text : `base64 ${found.base64}`);

async function browse(change) {
  if (!shown || shown.kind !== "log") return;
  const form = new FormData($("browse"));
  const query = new URLSearchParams();
  for (const name of ["from", "key", "stream"]) if (form.get(name)) query.set(name, form.get(name));
  query.set("count", PAGE);
  for (const [name, value] of Object.entries(change)) query.set(name, value);
  const name = shown.name;
  const found = await ask(`/v1/records/${encodeURIComponent(name)}?${query}`);
  if (!shown || shown.name !== name) return;
  browsed = found;
  show_records(found);
}

function show_records(found) {
  const heads = ["offset", "time", "stream", "key", "value"];
  $("records").tHead.replaceChildren(make("tr", {}, ...heads.map((text) => make("th", {}, text))));
  $("records").tBodies[0].replaceChildren(...found.records.map(record_row));
  const place = found.records.length === 1 ? "1 record" : `${found.records.length || "no"} records`;
  $("found").textContent = `${place} in [${found.start}, ${found.next}) of [${found.head}, ${found.limit})`;
}

function record_row(record) {
  const value = make("td", { class: "value" }, text_of(record.value));
  const headers = Object.entries(record.headers).map(([name, found]) => `${name}: ${text_of(found)}`);
  if (headers.length) value.prepend(make("div", { class: "legend" }, headers.join("  ")));
  const length = "text" in record.value ? new TextEncoder().encode(record.value.text).length : 0;
  if ("text" in record.value ? length < record.value_bytes : record.value_bytes > 2048) {
    const whole = make("button", { type: "button" }, `${bytes(record.value_bytes)}, show all`);
    whole.onclick = async () => {
      const one = await ask(`/v1/records/${encodeURIComponent(shown.name)}?from=${record.offset}&count=1`);
      value.replaceChildren(text_of(one.records[0].value));
    };
    value.append(" … ", whole);
  }
  const time = moment(record.timestamp_us);
  return make(
    "tr", {}, make("td", { class: "number" }, String(record.offset)), make("td", { class: "time" }, time),
    make("td", {}, record.stream || ""), make("td", { class: "key" }, text_of(record.key)), value,
  );
}

// -- a cluster ----------------------------------------------------------------

const idle = (log) => (log.suspended ? "suspended" : log.source && `read from ${log.source}`);

function show_cluster(cluster) {
  const machines = cluster.members.map((one) => [
    one.web ? make("a", { href: `${one.web}/` }, one.address) : one.address,
    one.zone || "–", count(one.leads), count(one.copies), one.address === cluster.address ? "this one" : "",
  ]);
  $("machines").replaceChildren(table(["machine", "zone", "leads", "copies", ""], machines));
  const there = new Set(cluster.members.map((one) => one.address));
  const logs = cluster.logs.map((one) => {
    const copies = one.copies.map((copy) => {
      const is_fine = (one.suspended || one.present.includes(copy)) && there.has(copy);
      if (is_fine) return make("div", {}, copy);
      const why = one.missing[copy];
      return make("div", { class: "bad" }, `${copy}, ${there.has(copy) ? "behind" : "away"}${why ? `: ${why}` : ""}`);
    });
    const labels = Object.entries(one.labels).map(([name, value]) => `${name}=${value}`).join(" ");
    return [
      make("a", { href: `#log/${encodeURIComponent(one.name)}` }, one.name),
      one.leader || idle(one) || make("span", { class: "bad" }, "nobody"), count(one.epoch),
      one.source ? "–" : `${one.copies.length} of ${one.replicas}`, make("div", {}, ...copies), labels,
    ];
  });
  $("led").replaceChildren(table(["log", "leader", "epoch", "copies", "at", "labels"], logs));
}

// -- a collection -------------------------------------------------------------

function show_collection(found) {
  $("collection-name").textContent = found.name;
  figures($("collection-figures"), [
    ["version", count(found.version)],
    ["upper", count(found.upper)],
    ["merged upper", count(found.merged_upper)],
    ["since", count(found.since)],
    ["pending batches", count(found.pending.batches)],
    ["controller", found.controller || "none"],
  ]);
  const layers = found.layers.map((one) => [count(one.layer), count(one.batches), count(one.rows), bytes(one.bytes)]);
  layers.push(["pending", count(found.pending.batches), count(found.pending.rows), bytes(found.pending.bytes)]);
  $("layers").replaceChildren(table(["layer", "batches", "rows", "size"], layers));
  const readers = found.readers.map((one) => [
    one.name, count(one.frontier), count(Math.max(found.upper - 1 - one.frontier, 0)), count(one.version),
    one.lease_seconds === null ? "–" : `${one.lease_seconds} s`, one.holds ? "holds back the rest" : "",
  ]);
  $("readers").replaceChildren(
    readers.length ? table(["reader", "frontier", "behind", "version", "lease left", ""], readers) : "There is no reader.",
  );
}

// -- running ------------------------------------------------------------------

function complain(error) {
  $("state").textContent = error.message;
  $("state").className = "bad";
}

async function look() {
  await look_around();
  const now = shown;
  if (now && now.kind !== "cluster") {
    const found = await ask(`/v1/${now.kind === "log" ? "look" : "collections"}/${encodeURIComponent(now.name)}`);
    if (now !== shown) return;
    if (now.kind === "log") show_log(found);
    else show_collection(found);
  }
  looks += 1;
  $("state").textContent = "";
  $("state").className = "";
  document.body.dataset.looks = looks;
}

async function run() {
  for (;;) {
    if (!document.hidden) await look().catch(complain);
    await new Promise((done) => setTimeout(done, LOOK_MS));
  }
}

$("login").onsubmit = (event) => {
  event.preventDefault();
  sessionStorage.setItem("token", $("token").value);
  look().catch(complain);
};
$("browse").onsubmit = (event) => {
  event.preventDefault();
  browse({}).catch(complain);
};
$("older").onclick = () => browsed && browse({ from: Math.max(browsed.head, browsed.start - PAGE) }).catch(complain);
$("newer").onclick = () => browsed && browse({ from: browsed.next }).catch(complain);
window.onhashchange = () => look().catch(complain);
run();
