// Moves the films of a page.

const films = [...document.querySelectorAll("[data-film]")].map(start);
films.find((film) => film.linked)?.lead();

// Lights up a holder in every film that has it, or all again.
function light(name) {
  for (const film of films) film.light(name);
}

function start(box) {
  const film = JSON.parse(box.querySelector("script").textContent);
  const canvas = box.querySelector("canvas"), pen = canvas.getContext("2d");
  const slider = box.querySelector("input"), button = box.querySelector(".play");
  const whenBox = box.querySelector(".when"), probe = box.querySelector(".probe");
  const PAGE = 4096, last = film.moments.length - 1;
  const LEFT = 152, ROW = 13, GAP = 2, FOLD = 14;
  // Pages of the narrowest row, and the parts of the line with the pages before each.
  const NARROW = 16, parts = partsOf(), used = everUsed(), lineEnd = parts.at(-1).from + parts.at(-1).pages;
  const linked = "linked" in box.dataset;
  let lit = null, at = -1, areas = new Map(), sorted = [], rows = [], left = LEFT, wide = 0, colours = {}, timer = 0;
  // The first page that is shown, and the height of the picture that shows all.
  let zoom = 1, top = 0, height = 0;

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

  // Goes to a moment, and shows its time in the films that are linked with this one.
  function lead(to = at) {
    go(to);
    const us = film.moments[at][1];
    if (linked && us !== null) for (const other of films) other.show(us);
  }

  // Goes to the last moment up to a time.
  function show(us) {
    if (!linked || film.moments[at][1] === us) return;
    go(film.moments.findLastIndex((moment) => moment[1] <= us));
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
    lay();
    const sharp = window.devicePixelRatio || 1;
    canvas.style.height = `${height}px`;
    canvas.width = Math.round(full * sharp);
    canvas.height = Math.round(height * sharp);
    pen.setTransform(sharp, 0, 0, sharp, 0, 0);
  }

  function partsOf() {
    let from = 0;
    return film.parts.map(([hex, pages, label], nth) => {
      const base = BigInt("0x" + hex), before = film.parts[nth - 1];
      const gap = before && Number(base - BigInt("0x" + before[0])) - before[1] * PAGE;
      const note = before ? `⋯ ${bytes(gap)} folded away${label && ` ⋯ ${label}`}` : label;
      from += pages;
      return { base, pages, label, note, from: from - pages };
    });
  }

  // The ranges in which an area is at any moment, ascending.
  function everUsed() {
    const all = [];
    for (const [, come] of film.steps) {
      let end = 0;
      for (let i = 0; i < come.length; i += 3) {
        const begin = end + come[i];
        all.push([begin, (end = begin + come[i + 1])]);
      }
    }
    all.sort((a, b) => a[0] - b[0]);
    const merged = [];
    for (const [begin, end] of all) {
      const before = merged.at(-1);
      if (before && begin <= before[1]) before[1] = Math.max(before[1], end);
      else merged.push([begin, end]);
    }
    return merged;
  }

  // The number of used ranges that begin at or before a page.
  function usedUpTo(page) {
    let low = 0, high = used.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (used[middle][0] <= page) low = middle + 1; else high = middle;
    }
    return low;
  }

  const rowPages = () => Math.max(1, Math.ceil(film.row / zoom));

  // Lays out the rows from `top`: all of them, or as many as there is room for. Two or more rows that are free at every
  // moment are folded.
  function lay() {
    rows = [];
    let y = 2, folded = 0;
    const add = (what, high) => {
      rows.push({ ...what, y });
      y += high + GAP;
    };
    const full = () => zoom > 1 && y + ROW > height;
    for (const { base, from: begin, pages, label, note } of parts) {
      const end = begin + pages;
      let from = Math.max(begin, top);
      if (from >= end || full()) continue;
      if (note && from === begin) add({ note }, FOLD);
      while (from < end && !full()) {
        const nth = usedUpTo(from), inside = nth > 0 && used[nth - 1][1] > from;
        const next = inside ? from : nth < used.length ? used[nth][0] : lineEnd;
        const empty = next < end ? Math.floor((next - from) / rowPages()) : Math.ceil((end - from) / rowPages());
        if (empty > 1) {
          const free = Math.min(empty * rowPages(), end - from);
          add({ note: `⋯ ${grouped(empty)} rows, ${bytes(free * PAGE)}: free at every moment` }, FOLD);
          folded += empty;
          from += empty * rowPages();
        } else {
          const address = base + BigInt(from - begin) * BigInt(PAGE);
          add({ from, pages: Math.min(rowPages(), end - from), address, label }, ROW);
          from += rowPages();
        }
      }
    }
    if (zoom === 1) height = y + 2;
    canvas.classList.toggle("zoomed", zoom > 1);
    zoomText.textContent = `${zoom > 1 ? `${zoom.toFixed(1)}x, ` : ""}${bytes(rowPages() * PAGE)} a row` +
      (folded ? `, ${grouped(folded)} free rows folded` : "");
  }

  // ---- zoom

  function rowAt(y) {
    return rows.findLast((row) => !row.note && row.y <= y) ?? rows.find((row) => !row.note);
  }

  // Zooms by a factor, so that what is under the point stays there as nearly as rows allow.
  function by(factor, point) {
    const place = canvas.getBoundingClientRect();
    const x = point ? point.clientX - place.left - left : wide / 2, y = point ? point.clientY - place.top : height / 2;
    const row = rowAt(y), share = Math.max(0, Math.min(1, x / wide));
    const page = row.from + share * rowPages();
    zoom = Math.max(1, Math.min(Math.max(1, film.row / NARROW), zoom * factor));
    let from = page - share * rowPages();
    for (let above = Math.floor(y / (ROW + GAP)); above > 0 && from > 0; above--) {
      const nth = usedUpTo(Math.ceil(from) - 1), end = nth > 0 ? Math.min(used[nth - 1][1], from) : 0;
      from -= Math.max(1, Math.floor((from - end) / rowPages())) * rowPages();
    }
    scroll(from);
  }

  function move(right, down) {
    if (zoom === 1) return;
    carried += (right / wide) * rowPages() + (down / (ROW + GAP)) * rowPages();
    const pages = Math.trunc(carried);
    carried -= pages;
    scroll(top - pages);
  }
  let carried = 0;

  function scroll(to) {
    top = zoom === 1 ? 0 : Math.max(0, Math.min(lineEnd - rowPages(), Math.round(to)));
    lay();
    draw();
  }

  function reset() {
    zoom = 1;
    scroll(0);
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
    const scale = wide / rowPages();
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

  // The page under the pointer, its row, and its area if it has one.
  function under(event) {
    const place = canvas.getBoundingClientRect();
    const x = event.clientX - place.left - left, y = event.clientY - place.top;
    const row = rows.find((row) => !row.note && y >= row.y && y < row.y + ROW + GAP);
    if (!row || x < 0) return null;
    const page = row.from + Math.floor((x / wide) * rowPages());
    if (page >= row.from + row.pages) return null;
    let low = 0, high = sorted.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (sorted[middle][0] <= page) low = middle + 1; else high = middle;
    }
    const found = sorted[low - 1];
    return { page, row, found: found && found[0] + found[1][0] > page ? found : null };
  }

  function point(event) {
    const here = under(event);
    if (!here) return;
    const { page, row, found } = here;
    const address = (page) => "0x" + (row.address + BigInt(page - row.from) * BigInt(PAGE)).toString(16);
    if (!found) {
      probe.textContent = `${address(page)}${row.label ? ", " + row.label : ""}: free`;
      return;
    }
    const [begin, [pages, code]] = found;
    const what = code === 0 ? "lazy" : code === 1 ? "pooled" : `busy, ${film.names[code - 2]}`;
    const together = film.together > 1 && pages <= film.together ? " (may be several areas, drawn together)" : "";
    probe.textContent = `${address(begin)} to ${address(begin + pages)}, ${bytes(pages * PAGE)}: ${what}${together}`;
  }

  // The area that is clicked lights up all of its holder.
  function click(event) {
    const code = under(event)?.found?.[1][1];
    if (code > 1) light(film.names[code - 2]);
    else if (lit !== null) light(film.names[lit]);
  }

  function stop() {
    clearInterval(timer);
    timer = 0;
    button.textContent = "▶ Play";
    button.setAttribute("aria-label", "Play the film");
  }

  function play() {
    if (timer) return stop();
    if (at === last) lead(0);
    // Whoever asked for less motion sees a moment a second.
    const calm = matchMedia("(prefers-reduced-motion: reduce)").matches;
    timer = setInterval(() => (at === last ? stop() : lead(at + 1)), calm ? 1000 : 70);
    button.textContent = "❚❚ Pause";
    button.setAttribute("aria-label", "Pause the film");
  }

  function key(event) {
    const steps = { ArrowRight: 1, ArrowUp: 1, ArrowLeft: -1, ArrowDown: -1, PageUp: 10, PageDown: -10, Home: -last, End: last };
    if (event.key === " ") play();
    else if (event.key in steps) lead(at + steps[event.key]);
    else return;
    event.preventDefault();
  }

  // Lights up a holder in the picture, the legend and the table, or all again.
  function lightUp(name) {
    const who = film.names.indexOf(name);
    lit = lit === who || who < 0 ? null : who;
    for (const one of box.querySelectorAll("[data-who]")) {
      one.classList.toggle("lit", Number(one.dataset.who) === lit);
      one.classList.toggle("unlit", lit !== null && Number(one.dataset.who) !== lit);
      if (one.tagName === "BUTTON") one.setAttribute("aria-pressed", Number(one.dataset.who) === lit);
    }
    draw();
  }

  const zoomText = zoomable(canvas, { by, move, reset });
  for (const one of box.querySelectorAll("[data-who]")) {
    one.addEventListener("click", () => light(film.names[Number(one.dataset.who)]));
  }
  canvas.addEventListener("click", click);
  canvas.addEventListener("pointermove", point);
  if (slider) {
    slider.addEventListener("input", () => lead(Number(slider.value)));
    button.addEventListener("click", play);
    canvas.addEventListener("keydown", key);
    for (const thumb of box.querySelectorAll("[data-at]")) {
      thumb.addEventListener("click", () => lead(Number(thumb.dataset.at)));
    }
  }
  new ResizeObserver(resize).observe(canvas.parentElement);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", resize);
  box.classList.add("alive");
  measure();
  go(film.opens);
  return { light: lightUp, linked, lead, show };

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
