// Zoom, for pictures that are drawn by a script and for those that stand on the page.

const ZOOM_STEP = 1.6;

// Lets a picture zoom: buttons before it, the keys + - 0, the wheel with Ctrl, two clicks, and a drag. `by` gets a
// factor and a point of the window or null, `move` the pixels of a drag, and `reset` nothing. Returns the text beside
// the buttons.
function zoomable(picture, { by, move, reset }) {
  const bar = document.createElement("div"), text = document.createElement("output");
  bar.className = "zoombar";
  const button = (sign, name, act) => {
    const one = document.createElement("button");
    Object.assign(one, { type: "button", textContent: sign, title: name });
    one.setAttribute("aria-label", name);
    one.addEventListener("click", act);
    bar.append(one);
  };
  button("+", "Zoom in", () => by(ZOOM_STEP, null));
  button("−", "Zoom out", () => by(1 / ZOOM_STEP, null));
  button("Reset", "Show everything", reset);
  bar.append(text);
  picture.before(bar);
  picture.addEventListener("keydown", (event) => {
    if (event.key === "+" || event.key === "=") by(ZOOM_STEP, null);
    else if (event.key === "-") by(1 / ZOOM_STEP, null);
    else if (event.key === "0") reset();
    else return;
    event.preventDefault();
  });
  // Without Ctrl the wheel scrolls the page.
  const wheel = (event) => {
    if (!event.ctrlKey && !event.metaKey) return;
    event.preventDefault();
    by(event.deltaY < 0 ? ZOOM_STEP : 1 / ZOOM_STEP, event);
  };
  picture.addEventListener("wheel", wheel, { passive: false });
  picture.addEventListener("dblclick", (event) => by(ZOOM_STEP, event));
  let from = null;
  picture.addEventListener("pointerdown", (event) => {
    picture.dragged = false;
    from = event.button === 0 ? event : null;
  });
  picture.addEventListener("pointermove", (event) => {
    if (!from || !(event.buttons & 1)) return;
    const [right, down] = [event.clientX - from.clientX, event.clientY - from.clientY];
    if (!picture.dragged && Math.hypot(right, down) < 4) return;
    if (!picture.dragged) picture.setPointerCapture(event.pointerId);
    picture.dragged = true;
    move(right, down);
    from = event;
  });
  // A click follows a drag: it is none.
  picture.addEventListener("click", (event) => {
    if (picture.dragged) event.stopImmediatePropagation();
  });
  return text;
}

// A drawing zooms by the part of it that is shown.
for (const box of document.querySelectorAll("[data-zoom]")) {
  const svg = box.querySelector("svg"), whole = svg.viewBox.baseVal;
  const [left, top, wide, high] = [whole.x, whole.y, whole.width, whole.height];
  let zoom = 1, x = left, y = top;
  svg.tabIndex = 0;
  const show = () => {
    const [w, h] = [wide / zoom, high / zoom];
    x = Math.max(left, Math.min(left + wide - w, x));
    y = Math.max(top, Math.min(top + high - h, y));
    svg.setAttribute("viewBox", `${x} ${y} ${w} ${h}`);
    svg.classList.toggle("zoomed", zoom > 1);
    text.textContent = zoom > 1 ? `${zoom.toFixed(1)}x` : "";
  };
  const by = (factor, point) => {
    const place = svg.getBoundingClientRect(), before = zoom;
    zoom = Math.max(1, Math.min(64, zoom * factor));
    const across = point ? (point.clientX - place.left) / place.width : 0.5;
    const along = point ? (point.clientY - place.top) / place.height : 0.5;
    x += across * wide * (1 / before - 1 / zoom);
    y += along * high * (1 / before - 1 / zoom);
    show();
  };
  const move = (right, down) => {
    const place = svg.getBoundingClientRect();
    x -= (right / place.width) * (wide / zoom);
    y -= (down / place.height) * (high / zoom);
    show();
  };
  const reset = () => { zoom = 1; show(); };
  const text = zoomable(svg, { by, move, reset });
}
