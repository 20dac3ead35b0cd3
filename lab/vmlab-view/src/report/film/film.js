// Moves the films of a page. It loads nothing, keeps nothing, and knows only what stands on the page.
"use strict";
for (const box of document.querySelectorAll("[data-film]")) start(box);

function start(box) {
  const film = JSON.parse(box.querySelector("script").textContent);
  const canvas = box.querySelector("canvas"), pen = canvas.getContext("2d");
  const slider = box.querySelector("input"), button = box.querySelector(".play");
  const whenBox = box.querySelector(".when"), probe = box.querySelector(".probe");
  const PAGE = 4096, last = film.moments.length - 1;
  const LEFT = 152, ROW = 13, GAP = 2, FOLD = 14;
  let lit = null, at = -1, areas = new Map(), sorted = [], rows = [], left = LEFT, wide = 0, colours = {}, timer = 0;

  // ---- the moments

  // Goes to a moment: from the one before it if that is shown, else from the last that is carried whole.
  function go(to) {
    to = Math.max(0, Math.min(last, to));
    const key = to - to % film.key;
    let from = at + 1;
    if (at < key || at > to) from = key;
    for (let n = from; n <= to; n++) step(n);
    at = to;
    sorted = [...areas.entries()].sort((a, b) => a[0] - b[0]);
    draw();
    tell();
  }

  function step(n) {
    if (n % film.key === 0) areas = new Map();
    const [gone, come] = film.steps[n];
    let from = 0;
    for (const more of gone) areas.delete(from += more);
    let end = 0;
    for (let i = 0; i < come.length; i += 3) {
      const begin = end + come[i];
      areas.set(begin, [come[i + 1], come[i + 2]]);
      end = begin + come[i + 1];
    }
  }

  function tell() {
    const [event, us, busy, lazy, pooled, count] = film.moments[at];
    const when = `event ${grouped(event)} of ${grouped(film.events)}` + (us === null ? "" : ` · ${(us / 1e6).toFixed(3)} s`);
    const what = `${bytes(busy * PAGE)} busy, ${bytes(lazy * PAGE)} lazy, ${bytes(pooled * PAGE)} pooled, in ${grouped(count)} areas`;
    canvas.setAttribute("aria-label", (slider ? when + ": " : "") + what);
    if (!slider) return;
    slider.value = at;
    slider.setAttribute("aria-valuetext", `${when}, ${what}`);
    whenBox.textContent = `${when} · ${what}`;
    for (const thumb of box.querySelectorAll("[data-at]")) {
      if (Number(thumb.dataset.at) === at) thumb.setAttribute("aria-current", "true");
      else thumb.removeAttribute("aria-current");
    }
  }

  // ---- the picture

  function measure() {
    const style = getComputedStyle(document.documentElement);
    const get = (name) => style.getPropertyValue(name).trim();
    colours = { ink: get("--ink"), dim: get("--dim"), card: get("--card"), line: get("--line") };
    colours.lazy = hatch(get("--lazy"), get("--paper"), 1);
    colours.pooled = hatch(get("--pooled"), get("--dim"), -1);
    colours.who = film.colours;
    colours.other = get("--other");
    const full = canvas.clientWidth || 900;
    left = full < 560 ? 0 : LEFT;
    wide = full - left - 1;
    rows = [];
    let page = 0, y = 2;
    film.parts.forEach(([hex, pages, label], part) => {
      const base = BigInt("0x" + hex);
      let note = label;
      if (part > 0) {
        const [before, many] = [BigInt("0x" + film.parts[part - 1][0]), film.parts[part - 1][1]];
        note = `⋯ ${bytes(Number(base - before) - many * PAGE)} folded away${label && ` ⋯ ${label}`}`;
      }
      if (note) {
        rows.push({ note, y });
        y += FOLD + GAP;
      }
      for (let from = 0; from < pages; from += film.row) {
        const address = base + BigInt(from) * BigInt(PAGE);
        rows.push({ from: page + from, pages: Math.min(film.row, pages - from), y, address, label });
        y += ROW + GAP;
      }
      page += pages;
    });
    const sharp = window.devicePixelRatio || 1;
    canvas.style.height = `${y + 2}px`;
    canvas.width = Math.round(full * sharp);
    canvas.height = Math.round((y + 2) * sharp);
    pen.setTransform(sharp, 0, 0, sharp, 0, 0);
  }

  function hatch(colour, stripe, slope) {
    const tile = document.createElement("canvas");
    tile.width = tile.height = 6;
    const ink = tile.getContext("2d");
    ink.fillStyle = colour;
    ink.fillRect(0, 0, 6, 6);
    ink.strokeStyle = stripe;
    ink.globalAlpha = 0.55;
    ink.lineWidth = 1.4;
    ink.beginPath();
    for (const shift of [-6, 0, 6]) {
      ink.moveTo(shift, slope > 0 ? 6 : 0);
      ink.lineTo(shift + 6, slope > 0 ? 0 : 6);
    }
    ink.stroke();
    return pen.createPattern(tile, "repeat");
  }

  function paint(code) {
    if (code === 0) return colours.lazy;
    if (code === 1) return colours.pooled;
    return code - 2 < colours.who.length ? colours.who[code - 2] : colours.other;
  }

  function draw() {
    pen.clearRect(0, 0, canvas.width, canvas.height);
    pen.font = "10.5px ui-monospace, Consolas, monospace";
    pen.textBaseline = "middle";
    const scale = wide / film.row;
    let next = 0;
    for (const row of rows) {
      const middle = row.y + ROW / 2;
      if (row.note) {
        pen.fillStyle = colours.dim;
        pen.fillText(row.note, left, row.y + FOLD / 2 + 1);
        continue;
      }
      if (left) {
        pen.fillStyle = colours.dim;
        pen.fillText("0x" + row.address.toString(16), 0, middle);
      }
      pen.fillStyle = colours.card;
      pen.fillRect(left, row.y, row.pages * scale, ROW);
      const end = row.from + row.pages;
      while (next > 0 && sorted[next - 1][0] + sorted[next - 1][1][0] > row.from) next--;
      for (; next < sorted.length && sorted[next][0] < end; next++) {
        const [begin, [pages, code]] = sorted[next];
        const a = Math.max(begin, row.from), b = Math.min(begin + pages, end);
        if (a >= b) continue;
        const x = left + (a - row.from) * scale, w = (b - a) * scale;
        pen.fillStyle = paint(code);
        pen.globalAlpha = lit === null || code === lit + 2 ? 1 : 0.18;
        // A hair between neighbours, where there is room for it.
        pen.fillRect(x, row.y, Math.max(w - (w > 4 ? 1 : 0), 1), ROW);
      }
      pen.globalAlpha = 1;
      pen.strokeStyle = colours.line;
      pen.lineWidth = 1;
      pen.strokeRect(left + 0.5, row.y - 0.5, row.pages * scale, ROW + 1);
    }
  }

  function resize() {
    measure();
    draw();
  }

  // ---- what is asked of it

  // The area under the pointer, or the hole.
  function point(event) {
    const place = canvas.getBoundingClientRect();
    const x = event.clientX - place.left - left, y = event.clientY - place.top;
    const row = rows.find((row) => !row.note && y >= row.y && y < row.y + ROW + GAP);
    if (!row || x < 0) return;
    const page = row.from + Math.floor((x / wide) * film.row);
    if (page >= row.from + row.pages) return;
    let low = 0, high = sorted.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (sorted[middle][0] <= page) low = middle + 1; else high = middle;
    }
    const address = (page) => "0x" + (row.address + BigInt(page - row.from) * BigInt(PAGE)).toString(16);
    const found = sorted[low - 1];
    if (!found || found[0] + found[1][0] <= page) {
      probe.textContent = `${address(page)}${row.label ? ", " + row.label : ""}: free`;
      return;
    }
    const [begin, [pages, code]] = found;
    const what = code === 0 ? "lazy" : code === 1 ? "pooled" : `busy, ${film.names[code - 2]}`;
    const together = film.together > 1 && pages <= film.together ? " (may be several areas, drawn together)" : "";
    probe.textContent = `${address(begin)} to ${address(begin + pages)}, ${bytes(pages * PAGE)}: ${what}${together}`;
  }

  function stop() {
    clearInterval(timer);
    timer = 0;
    button.textContent = "▶ Play";
    button.setAttribute("aria-label", "Play the film");
  }

  function play() {
    if (timer) return stop();
    if (at === last) go(0);
    // Whoever asked for less motion sees a moment a second.
    const calm = matchMedia("(prefers-reduced-motion: reduce)").matches;
    timer = setInterval(() => (at === last ? stop() : go(at + 1)), calm ? 1000 : 70);
    button.textContent = "❚❚ Pause";
    button.setAttribute("aria-label", "Pause the film");
  }

  function key(event) {
    const steps = { ArrowRight: 1, ArrowUp: 1, ArrowLeft: -1, ArrowDown: -1, PageUp: 10, PageDown: -10, Home: -last, End: last };
    if (event.key === " ") play();
    else if (event.key in steps) go(at + steps[event.key]);
    else return;
    event.preventDefault();
  }

  // Lights up a holder in the picture, the legend and the table, or all again.
  function light(who) {
    lit = lit === who ? null : who;
    for (const one of box.querySelectorAll("[data-who]")) {
      one.classList.toggle("lit", Number(one.dataset.who) === lit);
      one.classList.toggle("unlit", lit !== null && Number(one.dataset.who) !== lit);
      if (one.tagName === "BUTTON") one.setAttribute("aria-pressed", Number(one.dataset.who) === lit);
    }
    draw();
  }

  for (const one of box.querySelectorAll("[data-who]")) {
    one.addEventListener("click", () => light(Number(one.dataset.who)));
  }
  canvas.addEventListener("pointermove", point);
  canvas.addEventListener("pointerdown", point);
  if (slider) {
    slider.addEventListener("input", () => go(Number(slider.value)));
    button.addEventListener("click", play);
    canvas.addEventListener("keydown", key);
    for (const thumb of box.querySelectorAll("[data-at]")) {
      thumb.addEventListener("click", () => go(Number(thumb.dataset.at)));
    }
  }
  new ResizeObserver(resize).observe(canvas.parentElement);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", resize);
  box.classList.add("alive");
  measure();
  go(film.opens);

  function grouped(number) {
    return String(number).replace(/\B(?=(\d{3})+$)/g, ",");
  }

  function bytes(count) {
    const units = ["B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    let unit = 0;
    while (count >= 1024 && unit < units.length - 1) {
      count /= 1024;
      unit += 1;
    }
    return `${count >= 100 ? count.toFixed(0) : count.toFixed(1).replace(/\.0$/, "")} ${units[unit]}`;
  }
}
