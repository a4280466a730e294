// The editor: completion, diagnostics as typed, the plan, and the result in the form that suits its
// columns.

import { complete } from "./completion.js";
import { element } from "./elements.js";
import { visible } from "./format.js";
import { Bars, HeatMap, pairs } from "./heatmap.js";
import { LineChart } from "./lines.js";
import { panel, request } from "./panel.js";
import { ResultTable, isNumber } from "./table.js";

const ROWS_KEPT_MAX = 2000;
const CHECK_AFTER_MILLISECONDS = 250;
const FORMS = ["auto", "table", "line", "heat map", "histogram"];
const DEFAULT_QUERY = "select op, count(*) as n, avg(latency) as mean\nfrom IO [range 5 s slide 1 s]\ngroup by op order by op";

/**
 * @param {HTMLElement} root
 * @param {URLSearchParams} parameters
 * @param {import("./panel.js").Context} context
 */
export function show(root, parameters, context) {
  const editor = /** @type {HTMLTextAreaElement} */ (element("textarea", {
    id: "editor", spellcheck: "false", autocomplete: "off", "aria-describedby": "diagnostics",
  }));
  editor.value = parameters.get("q") ?? DEFAULT_QUERY;
  const form = /** @type {HTMLSelectElement} */ (element("select", { id: "form" },
    ...FORMS.map((name) => element("option", { value: name }, name))));
  form.value = FORMS.includes(parameters.get("form") ?? "") ? String(parameters.get("form")) : "auto";
  const diagnostics = element("div", { id: "diagnostics", role: "status", "aria-live": "polite" });
  const plan = element("div");
  const result = element("div", { id: "result" });
  const downloads = element("span");
  const source = sourceChoice(context, () => {
    // The page is shown again with the other source.
    remember();
    globalThis.dispatchEvent(new HashChangeEvent("hashchange"));
  });
  let close = () => {};
  let timer = 0;
  let checks = 0;

  const remember = () => {
    /** @type {Record<string, string>} */
    const of = source.value === "" ? {} : { source: source.value };
    const state = new URLSearchParams({ q: editor.value, form: form.value, ...of });
    history.replaceState(null, "", `#query&${state}`);
    const isLive = context.status.live && source.value === "";
    const links = ["csv", "json", "arrow", "parquet"].map((format) => {
      /** @type {Record<string, string>} */
      const options = { q: editor.value, format, ...(isLive ? { for: "10s" } : {}), ...of };
      const label = isLive ? `${format} of the next 10 s` : format;
      return element("a", { class: "button", href: `api/v1/query?${new URLSearchParams(options)}`, download: `result.${format}` }, label);
    });
    downloads.replaceChildren("Download: ", ...links.flatMap((link) => [link, " "]));
  };
  const check = async () => {
    checks += 1;
    const own = checks;
    const text = editor.value;
    const answer = await post("api/v1/check", text, source.value);
    // The answer to an older text is not shown.
    if (own !== checks || answer === null) return null;
    diagnostics.replaceChildren(...found(answer, text));
    return answer;
  };
  const run = async () => {
    // A later check would supersede this one.
    clearTimeout(timer);
    remember();
    close();
    const answer = await check();
    if (answer?.ok !== true) return;
    const content = resultView(form.value, answer, editor.value);
    const shown = panel(context, {
      title: "Result", q: editor.value, content: content.root, onFrame: content.onFrame,
    });
    close = shown.close;
    result.replaceChildren(shown.root);
  };
  const explain = async () => {
    const answer = await post("api/v1/explain", editor.value, source.value);
    plan.replaceChildren(...(answer === null ? [] : planView(answer)));
  };
  editor.addEventListener("input", () => {
    remember();
    clearTimeout(timer);
    timer = setTimeout(check, CHECK_AFTER_MILLISECONDS);
  });
  editor.addEventListener("keydown", (event) => {
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) run();
  });
  form.addEventListener("change", run);
  root.replaceChildren(element("h1", {}, "Query"),
    element("label", { for: "editor" }, "CQL; Ctrl+Enter runs it, Ctrl+Space completes"),
    element("div", { class: "editor" }, editor, complete(editor)), diagnostics,
    element("div", { class: "bar" }, element("button", { id: "run", onclick: run }, "Run"),
      element("button", { id: "stop", onclick: () => close() }, "Stop"),
      element("button", { id: "explain", onclick: explain }, "Plan"),
      element("label", { for: "form" }, "Show as"), form,
      element("label", { for: "of" }, "of"), source, downloads),
    standing(context, editor), plan, result);
  remember();
  check();
  if (parameters.has("q")) run();
  return () => {
    clearTimeout(timer);
    close();
  };
}

/**
 * The choice of the source.
 * @param {import("./panel.js").Context} context
 * @param {() => void} onChange
 */
function sourceChoice(context, onChange) {
  const { status, source } = context;
  const own = status.monitor !== null ? "the fleet" : status.live ? "live requests" : "the recording";
  const options = [["", own], ...(status.recent ? [["recent", "the retained requests"]] : [])];
  if (source !== undefined && source !== "recent") options.push([source, source.replace(/^recording:/, "")]);
  const choice = /** @type {HTMLSelectElement} */ (element("select", { id: "of", onchange: onChange },
    ...options.map(([value, label]) => element("option", { value }, visible(label)))));
  choice.value = source ?? "";
  if (status.recordings) {
    request("api/v1/recordings").then((files) => {
      for (const { name } of files.slice(0, 100)) {
        const value = `recording:${name}`;
        if (value !== source) choice.append(element("option", { value }, visible(name)));
      }
    }).catch(() => {});
  }
  return choice;
}

/**
 * Saves the query as a standing one.
 * @param {import("./panel.js").Context} context
 * @param {HTMLTextAreaElement} editor
 */
function standing(context, editor) {
  if (!context.status.live && context.status.monitor === null) return "";
  const name = /** @type {HTMLInputElement} */ (element("input", { id: "standing-name", type: "text", maxlength: 100 }));
  const state = element("span", { role: "status" });
  const save = async () => {
    try {
      await request("api/v1/queries", { q: editor.value, ...(name.value ? { name: name.value } : {}) });
      state.className = "";
      state.replaceChildren("saved; it runs until it is ended under ", element("a", { href: "#queries" }, "Queries"));
    } catch (error) {
      state.className = "error";
      state.textContent = /** @type {Error} */ (error).message;
    }
  };
  return element("div", { class: "bar" }, element("label", { for: "standing-name" }, "Name"), name,
    element("button", { id: "save", onclick: save }, "Save as standing query"), state);
}

/**
 * @param {string} path
 * @param {string} q
 * @param {string} source
 * @returns {Promise<any>}
 */
async function post(path, q, source) {
  try {
    const response = await fetch(path, {
      method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify({ q, ...(source === "" ? {} : { source }) }),
    });
    return await response.json();
  } catch {
    return null;
  }
}

/**
 * The diagnostics, each with the line in question.
 * @param {any} answer
 * @param {string} text
 */
function found(answer, text) {
  if (answer.error !== undefined) return [element("div", { class: "error" }, answer.error.message)];
  const bytes = new TextEncoder().encode(text);
  const decoded = (/** @type {number} */ from, /** @type {number} */ to) =>
    new TextDecoder().decode(bytes.slice(from, to));
  const shown = answer.diagnostics.map((/** @type {any} */ one) => {
    const before = decoded(0, one.start).split("\n");
    const after = decoded(one.end, bytes.length).split("\n")[0];
    const help = one.help ? `; ${one.help}` : "";
    return element("div", {},
      element("div", { class: "error" }, `${one.severity}[${one.code}] line ${before.length}: ${one.message}${help}`),
      element("pre", { class: "excerpt" }, before[before.length - 1],
        element("mark", {}, decoded(one.start, one.end) || " "), after));
  });
  if (!answer.ok) return shown;
  const columns = answer.columns.map((/** @type {any} */ one) => visible(one.name)).join(", ");
  return [...shown, element("div", { class: "faint" }, `a ${answer.shape} of ${columns}`)];
}

/**
 * The operators with their places, what each delivers, and the cost.
 * @param {any} answer
 */
function planView(answer) {
  if (answer.error !== undefined) return [element("div", { class: "error" }, answer.error.message)];
  const operators = answer.plan?.operators ?? answer.operators ?? [];
  const rows = operators.map((/** @type {any} */ one) => element("tr", {},
    element("td", {}, one.place ?? ""),
    element("td", {}, `${"\u00a0\u00a0".repeat(one.depth)}${visible(one.operator)}`),
    element("td", {}, visible((one.notes ?? []).join("; ")))));
  const table = element("table", {}, element("thead", {}, element("tr", {},
    ...["place", "operator", "notes"].map((name) => element("th", { scope: "col" }, name)))),
  element("tbody", {}, ...rows));
  const others = Object.entries(answer).filter(([name]) => !["operators", "plan", "source"].includes(name));
  const lines = [...(answer.source ?? []), ...others.map(([name, value]) => `${name}: ${JSON.stringify(value)}`)];
  return [element("section", { class: "panel", "aria-label": "Plan" }, element("h2", {}, "Plan"),
    element("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "Operators" }, table),
    element("pre", {}, lines.map(visible).join("\n")))];
}

/**
 * What shows the result: by the columns, unless the user has chosen.
 * @param {string} chosen
 * @param {any} answer
 * @param {string} text
 */
function resultView(chosen, answer, text) {
  const isStream = answer.shape === "stream";
  const hasTally = answer.columns.some((/** @type {any} */ one) => one.type === "tally");
  let form = chosen;
  if (form === "auto") {
    if (hasTally) form = isStream ? "heat map" : "histogram";
    else form = isStream && /\brstream\b/i.test(text) ? "line" : "table";
  }
  if (form === "heat map") return heatView();
  if (form === "histogram") return barsView();
  if (form === "line") return lineView();
  return tableView(isStream);
}

/** @param {boolean} isStream */
function tableView(isStream) {
  const table = new ResultTable();
  /** @type {any[][]} */
  let kept = [];
  return {
    root: table.root,
    /** @param {import("./push.js").Frame} frame */
    onFrame: (frame) => {
      kept = frame.isSnapshot || kept.length === 0 ? frame.values
        : kept.map((column, i) => [...column, ...frame.values[i]].slice(-ROWS_KEPT_MAX));
      // The instant and number of copies of a relation's row are shown if they say something.
      const copies = frame.columns.findIndex((one) => one.name === "weight");
      const isShown = (/** @type {number} */ i) => isStream
        || (i !== 0 && (i !== copies || kept[i].some((count) => count !== 1)));
      const columns = frame.columns.filter((_, i) => isShown(i));
      table.show(columns, kept.filter((_, i) => isShown(i)), isStream);
    },
  };
}

function heatView() {
  const map = new HeatMap("Histogram over time", "");
  return {
    root: map.root,
    /** @param {import("./push.js").Frame} frame */
    onFrame: (frame) => {
      if (frame.isSnapshot) map.clear();
      const at = frame.columns.findIndex((column) => column.type === "list");
      if (at < 0) return;
      map.unit = frame.columns[at].unit;
      frame.values[at].forEach((entries, i) => map.add(Number(frame.values[0][i]), pairs(entries)));
      map.draw();
    },
  };
}

function barsView() {
  const root = element("div");
  return {
    root,
    /** @param {import("./push.js").Frame} frame */
    onFrame: (frame) => {
      const at = frame.columns.findIndex((column) => column.type === "list");
      if (at < 0) {
        root.textContent = "the result has no histogram; choose another form";
        return;
      }
      const texts = frame.columns.flatMap((column, i) => (column.dictionary !== null ? [i] : []));
      root.replaceChildren(...frame.values[at].flatMap((entries, row) => {
        const bars = new Bars(frame.columns[at].unit);
        bars.show(pairs(entries));
        const name = texts.map((i) => frame.values[i][row] ?? "NULL").join(" ");
        return [element("h2", {}, visible(name)), bars.root];
      }));
    },
  };
}

function lineView() {
  const chart = new LineChart("Result over time", "");
  return {
    root: chart.root,
    /** @param {import("./push.js").Frame} frame */
    onFrame: (frame) => {
      const isState = frame.columns.some((column) => column.name === "weight");
      if (frame.isSnapshot && !isState) chart.clear();
      const at = frame.columns.findIndex((column, i) =>
        i > 0 && column.name !== "weight" && isNumber(column));
      if (at < 0) return;
      chart.unit = frame.columns[at].unit;
      const texts = frame.columns.flatMap((column, i) => (column.dictionary !== null ? [i] : []));
      frame.values[at].forEach((value, row) => {
        if (value === null) return;
        const name = texts.map((i) => frame.values[i][row] ?? "NULL").join(" ");
        chart.add(name || frame.columns[at].name, Number(frame.values[0][row]), Number(value));
      });
      chart.draw();
    },
  };
}
