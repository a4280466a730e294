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
 * The value of a colour variable of the style sheet.
 * @param {string} name
 */
export function colour(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
}

/**
 * A canvas of the width of its element, in device pixels, and its context in CSS pixels.
 * @param {HTMLCanvasElement} canvas
 * @param {number} height
 */
export function prepared(canvas, height) {
  const ratio = globalThis.devicePixelRatio || 1;
  const width = Math.max(120, canvas.parentElement?.clientWidth
    ? canvas.getBoundingClientRect().width : 300);
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
