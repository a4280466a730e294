// Elements of the page. Texts are set as text, never as markup: names of VMs, files and processes
// are chosen by others.

/**
 * An element with attributes, listeners (`onclick: f`) and children.
 * @param {string} tag
 * @param {Record<string, any>} [attributes]
 * @param {...(Node | string)} children
 */
export function element(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else if (value !== undefined && value !== false) made.setAttribute(name, String(value));
  }
  made.append(...children);
  return made;
}

/**
 * The colours of the present scheme.
 * @type {Map<string, string>}
 */
const colours = new Map();
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => colours.clear());

/**
 * The value of a colour variable of the style sheet. To read it costs a computation of styles, so it
 * is read once for each scheme.
 * @param {string} name
 */
export function colour(name) {
  let value = colours.get(name);
  if (value === undefined) {
    value = getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
    colours.set(name, value);
  }
  return value;
}

/**
 * The widths of canvases, which are measured when they change.
 * @type {WeakMap<Element, number>}
 */
const widths = new WeakMap();
const observer = new ResizeObserver((entries) => {
  for (const { target, contentRect } of entries) widths.set(target, contentRect.width);
});

/** @param {HTMLCanvasElement} canvas */
function widthOf(canvas) {
  let width = widths.get(canvas);
  if (width === undefined) {
    width = canvas.parentElement?.clientWidth ? canvas.getBoundingClientRect().width : 0;
    if (width > 0) {
      widths.set(canvas, width);
      observer.observe(canvas);
    }
  }
  return Math.max(120, width || 300);
}

/**
 * Canvases outside of the window, and what draws them when they are scrolled into it; null if they
 * are up to date.
 * @type {WeakMap<Element, {isVisible: boolean, due: (() => void) | null}>}
 */
const seen = new WeakMap();
const visibility = new IntersectionObserver((entries) => {
  for (const { target, isIntersecting } of entries) {
    const state = seen.get(target);
    if (state === undefined) continue;
    state.isVisible = isIntersecting;
    if (isIntersecting) state.due?.();
  }
}, { rootMargin: "200px" });

/**
 * Draws now, or when the canvas is scrolled into the window.
 * @param {HTMLElement} canvas
 * @param {() => void} draw
 */
export function drawSeen(canvas, draw) {
  let state = seen.get(canvas);
  if (state === undefined) {
    state = { isVisible: true, due: null };
    seen.set(canvas, state);
    visibility.observe(canvas);
  }
  state.due = state.isVisible ? null : draw;
  if (state.isVisible) draw();
}

/**
 * A canvas of the width of its element, in device pixels, and its context in CSS pixels.
 * @param {HTMLCanvasElement} canvas
 * @param {number} height
 */
export function prepared(canvas, height) {
  const ratio = globalThis.devicePixelRatio || 1;
  const width = widthOf(canvas);
  const [across, down] = [Math.round(width * ratio), Math.round(height * ratio)];
  if (canvas.width !== across || canvas.height !== down) {
    canvas.width = across;
    canvas.height = down;
    canvas.style.height = `${height}px`;
  }
  const context = /** @type {CanvasRenderingContext2D} */ (canvas.getContext("2d"));
  context.setTransform(ratio, 0, 0, ratio, 0, 0);
  context.clearRect(0, 0, width, height);
  return { context, width, height };
}

/**
 * Whether controls of the page, such as an editor, use this key themselves.
 * @param {EventTarget | null} target
 */
export function isEditing(target) {
  return target instanceof HTMLElement && /^(TEXTAREA|INPUT|SELECT)$/.test(target.tagName);
}
