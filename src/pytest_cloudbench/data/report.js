"use strict";
// A figure's numbers are in the page once, as CSV: the table, the file and the tips of its bars are made of them.
const readNumbers = (figure) => {
  if (!figure.numbers) {
    figure.csv = figure.querySelector("pre").textContent;
    figure.numbers = [[]];
    for (const [, cell, end] of figure.csv.matchAll(/("(?:[^"]|"")*"|[^,\n]*)([,\n])/g)) {
      const text = cell.startsWith('"') ? cell.slice(1, -1).replaceAll('""', '"') : cell;
      figure.numbers.at(-1).push(text.replace(/^'(?=[=+\-@])/, ""));
      if (end === "\n") figure.numbers.push([]);
    }
    figure.numbers.pop();
  }
  return figure.numbers;
};
const formatCell = (cell) => {
  if (/^-?\d+\.\d+$|^-?\d[\d.]*e[+-]\d+$/.test(cell))  // 4 digits, and all of them before the point
    return String(Math.abs(cell) < 1000 ? Number(Number(cell).toPrecision(4)) : Math.round(cell));
  return { "": "-", True: "yes", False: "no" }[cell] ?? cell;
};
const addElement = (parent, name, text, attributes = {}) => {
  const added = parent.appendChild(document.createElement(name));
  added.textContent = text;
  for (const [key, value] of Object.entries(attributes)) added.setAttribute(key, value);
  return added;
};
const showNumbers = (details) => {
  const figure = details.closest("figure"), text = figure && details.querySelector("pre");
  if (!text) return;
  const [head, ...rows] = readNumbers(figure), title = figure.querySelector("figcaption :first-child").textContent;
  const isNumber = head.map((_, column) => rows.some((row) => /^[-+]?\d/.test(row[column])));
  const region = document.createElement("div");
  for (const [key, value] of Object.entries({ class: "scroll", role: "region", tabindex: 0, "aria-label": title }))
    region.setAttribute(key, value);
  const table = addElement(region, "table", "", head.length > 5 ? { class: "numbers" } : {});  // more are cards on a phone
  addElement(table, "caption", title);
  const style = (column) => isNumber[column] ? {} : { class: "t" };
  const titles = addElement(addElement(table, "thead", ""), "tr", "");
  head.forEach((cell, column) => addElement(titles, "th", cell, { scope: "col", ...style(column) }));
  const body = addElement(table, "tbody", "");
  for (const row of rows) {
    const line = addElement(body, "tr", "");
    row.forEach((cell, column) => column
      ? addElement(line, "td", formatCell(cell), { "data-label": head[column], ...style(column) })
      : addElement(line, "th", formatCell(cell), { scope: "row" }));
  }
  text.replaceWith(region);
  const link = addElement(addElement(details, "p", ""), "a", "CSV", {
    download: figure.id + ".csv", href: "data:text/csv;charset=utf-8," + encodeURIComponent(figure.csv) });
  addElement(link, "span", " of " + title, { class: "of" });
};
(() => {
  document.addEventListener("toggle", (event) => { if (event.target.open) showNumbers(event.target); }, true);
  for (const details of document.querySelectorAll("details[open]")) showNumbers(details);
  const describeRow = (mark, x) => {  // that of the part of the run below the pointer
    const [head, ...rows] = readNumbers(mark.closest("figure")), box = mark.getBoundingClientRect();
    const at = (x - box.left) / box.width * mark.dataset.end;
    const row = rows.filter((each) => Number(each[0]) <= at).at(-1) || rows[0];
    return head.map((name, column) => `${name}: ${formatCell(row[column])}`).join("; ");
  };
  const tip = document.createElement("div");
  tip.id = "tip";
  tip.hidden = true;
  tip.setAttribute("aria-hidden", "true");
  document.body.append(tip);
  document.addEventListener("pointermove", (event) => {
    const mark = event.target.closest ? event.target.closest("[data-tip], .rows") : null;
    tip.hidden = !mark;
    if (!mark) return;
    tip.textContent = mark.dataset.tip || describeRow(mark, event.clientX);
    const left = Math.min(event.clientX + 14, innerWidth - tip.offsetWidth - 8);
    tip.style.left = Math.max(4, left) + "px";
    const above = event.clientY - tip.offsetHeight - 12;
    tip.style.top = (above < 4 ? event.clientY + 18 : above) + "px";
  });
  const open = () => {
    const target = location.hash && document.getElementById(decodeURIComponent(location.hash.slice(1)));
    if (!target) return;
    for (let each = target; each; each = each.parentElement) if (each.tagName === "DETAILS") each.open = true;
    target.scrollIntoView();
  };
  addEventListener("hashchange", open);
  open();
  let shut = [];
  addEventListener("beforeprint", () => {
    shut = [...document.querySelectorAll("details.run:not([open])")];
    for (const each of shut) each.open = true;
  });
  addEventListener("afterprint", () => { for (const each of shut) each.open = false; });
})();
