// JSON of the API that a page reads again and again, while the tab is visible.

import { request } from "./panel.js";

/**
 * Reads `path` now and at each interval; the function `close` ends it.
 * @param {string} path
 * @param {number} milliseconds
 * @param {HTMLElement} error
 * @param {(answer: any) => void} onAnswer
 */
export function polled(path, milliseconds, error, onAnswer) {
  let isClosed = false;
  const now = async () => {
    try {
      const answer = await request(path);
      if (isClosed) return;
      error.textContent = "";
      onAnswer(answer);
    } catch (failure) {
      // What is shown stays, with the reason why it is old.
      if (!isClosed) error.textContent = /** @type {Error} */ (failure).message;
    }
  };
  const timer = setInterval(() => {
    if (!document.hidden) now();
  }, milliseconds);
  now();
  return {
    now,
    close: () => {
      isClosed = true;
      clearInterval(timer);
    },
  };
}
