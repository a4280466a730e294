// Completion in the editor: streams, their columns, functions and keywords, by the word before the
// cursor.

import { element } from "./elements.js";
import { visible } from "./format.js";
import { request } from "./panel.js";

const KEYWORDS = ["select", "from", "where", "group by", "order by", "having", "limit", "range", "slide",
  "rows", "partition by", "Rstream", "Istream", "Dstream", "create view", "as", "and", "or", "not", "is null",
  "between", "in", "like", "case when", "distinct", "desc", "over", "union all", "join", "left join", "on"];
const SHOWN_MAX = 12;

/**
 * A suggestion: what is inserted, and its description.
 * @typedef {{text: string, doc: string}} Suggestion
 */

/** @type {Promise<Suggestion[]> | null} */
let vocabulary = null;

/** @returns {Promise<Suggestion[]>} */
async function readVocabulary() {
  const [streams, functions] = await Promise.all([request("api/v1/streams"), request("api/v1/functions")]);
  const of = /** @type {Map<string, Suggestion>} */ (new Map());
  const add = (/** @type {string} */ text, /** @type {string} */ doc) => {
    if (!of.has(text.toLowerCase())) of.set(text.toLowerCase(), { text, doc });
  };
  for (const stream of streams) {
    add(stream.name, `${stream.kind ?? stream.shape ?? "stream"}: ${stream.doc ?? ""}`);
    for (const column of stream.columns ?? []) {
      const unit = column.unit ? ` [${column.unit}]` : "";
      add(column.name, `${stream.name}.${column.name}${unit}: ${column.doc}`);
    }
  }
  for (const one of functions) add(`${one.name}(`, `${one.signature}: ${one.summary}`);
  KEYWORDS.forEach((word) => add(word, "keyword"));
  return [...of.values()];
}

/**
 * The word before the cursor.
 * @param {HTMLTextAreaElement} editor
 */
function wordOf(editor) {
  const before = editor.value.slice(0, editor.selectionStart);
  return /[A-Za-z_][A-Za-z0-9_]*$/.exec(before)?.[0] ?? "";
}

/**
 * Adds completion to an editor; returns the list, which belongs below it.
 * @param {HTMLTextAreaElement} editor
 */
export function complete(editor) {
  const list = element("ul", { class: "completions", id: "completions", role: "listbox", "aria-label": "Completions", hidden: true });
  editor.setAttribute("aria-controls", "completions");
  editor.setAttribute("aria-autocomplete", "list");
  /** @type {Suggestion[]} */
  let found = [];
  let chosen = 0;
  const hide = () => {
    found = [];
    list.hidden = true;
    editor.removeAttribute("aria-activedescendant");
  };
  const draw = () => {
    list.hidden = found.length === 0;
    list.replaceChildren(...found.map((one, i) => element("li", {
      id: `completion-${i}`, role: "option", "aria-selected": String(i === chosen), title: visible(one.doc),
      // The editor keeps the focus.
      onpointerdown: (/** @type {Event} */ event) => {
        event.preventDefault();
        insert(one);
      },
    }, visible(one.text), element("span", { class: "faint" }, ` ${visible(one.doc).slice(0, 60)}`))));
    if (found.length > 0) editor.setAttribute("aria-activedescendant", `completion-${chosen}`);
  };
  const insert = (/** @type {Suggestion} */ { text }) => {
    const start = editor.selectionStart - wordOf(editor).length;
    editor.setRangeText(text, start, editor.selectionStart, "end");
    hide();
    editor.dispatchEvent(new Event("input"));
    hide();
  };
  const suggest = async (/** @type {boolean} */ isRequested) => {
    const word = wordOf(editor).toLowerCase();
    if (word.length < 2 && !isRequested) return hide();
    vocabulary ??= readVocabulary();
    vocabulary.catch(() => { vocabulary = null; });
    const all = await vocabulary.catch(() => []);
    if (word !== wordOf(editor).toLowerCase()) return;
    const starts = all.filter(({ text }) => text.toLowerCase().startsWith(word) && text.toLowerCase() !== word);
    found = starts.slice(0, SHOWN_MAX);
    chosen = 0;
    draw();
  };
  editor.addEventListener("input", (event) => {
    // What was completed is not completed again.
    if (event.isTrusted || event instanceof InputEvent) suggest(false);
  });
  editor.addEventListener("keydown", (event) => {
    if (event.key === " " && event.ctrlKey) {
      event.preventDefault();
      suggest(true);
      return;
    }
    if (found.length === 0) return;
    if (event.key === "ArrowDown" || event.key === "ArrowUp") {
      event.preventDefault();
      chosen = (chosen + (event.key === "ArrowDown" ? 1 : found.length - 1)) % found.length;
      draw();
    } else if ((event.key === "Tab" || event.key === "Enter") && !event.ctrlKey && !event.metaKey) {
      event.preventDefault();
      insert(found[chosen]);
    } else if (event.key === "Escape") {
      event.preventDefault();
      hide();
    }
  });
  editor.addEventListener("blur", hide);
  return list;
}
