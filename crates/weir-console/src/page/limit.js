// The form that limits a disk of a VM for some time.

import { element } from "./elements.js";
import { visible } from "./format.js";
import { request } from "./panel.js";

const TIMES = ["10m", "1h", "8h"];

/**
 * The form, where the console may limit disks.
 * @param {import("./panel.js").Context} context
 * @param {string | null} vm
 * @param {string | null} disk
 */
export function limitForm(context, vm, disk) {
  const { status, live, source } = context;
  if (vm === null || !live || source !== undefined || status.limits.length === 0) return "";
  const iops = field("limit-iops", "number", { min: 1, step: 1 });
  const bytes = field("limit-bytes", "text", { placeholder: "50MiB" });
  const time = /** @type {HTMLSelectElement} */ (element("select", { id: "limit-for" },
    ...TIMES.map((name) => element("option", { value: name }, name))));
  const result = element("div", { role: "status", "aria-live": "polite" });
  const send = async (/** @type {boolean} */ apply) => {
    const body = {
      vm, apply, for: time.value,
      ...(disk === null ? {} : { disk }),
      ...(iops.value === "" ? {} : { iops: Number(iops.value) }),
      ...(bytes.value === "" ? {} : { bytes_per_second: bytes.value }),
    };
    try {
      result.replaceChildren(...outcome(await request("api/v1/leases", body)));
    } catch (error) {
      result.replaceChildren(element("div", { class: "error" }, /** @type {Error} */ (error).message));
    }
  };
  return element("details", { id: "limit" }, element("summary", {}, "Limit this disk"),
    element("div", { class: "bar" },
      element("label", { for: "limit-iops" }, "Requests per second"), iops,
      element("label", { for: "limit-bytes" }, "bytes per second"), bytes,
      element("label", { for: "limit-for" }, "for"), time,
      element("button", { id: "limit-show", onclick: () => send(false) }, "Show what it writes"),
      element("button", { id: "limit-apply", onclick: () => send(true) }, "Limit")),
    result);
}

/**
 * @param {string} id
 * @param {string} type
 * @param {Record<string, any>} attributes
 */
function field(id, type, attributes) {
  return /** @type {HTMLInputElement} */ (element("input", { id, type, ...attributes }));
}

/**
 * What was set, or would be.
 * @param {any} answer
 */
function outcome(answer) {
  const limits = (/** @type {Record<string, number>} */ setting) => {
    const set = Object.entries(setting).filter(([, limit]) => limit > 0);
    return set.map(([name, limit]) => `${name}=${limit}`).join(" ") || "no limit";
  };
  const change = `${answer.knob}: ${limits(answer.before)} to ${limits(answer.limit)}`;
  if (answer.event === "applied") {
    return [element("p", {}, visible(`${change}, until ${answer.ends}. `),
      element("a", { href: "#alerts" }, "Leases"))];
  }
  return [element("p", {}, visible(`It would write ${change}`)), element("pre", {}, visible(answer.command))];
}
