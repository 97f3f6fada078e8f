"use strict";
(() => {
  const tip = document.createElement("div");
  tip.id = "tip";
  tip.hidden = true;
  tip.setAttribute("aria-hidden", "true");
  document.body.append(tip);
  document.addEventListener("pointermove", (event) => {
    const mark = event.target.closest ? event.target.closest("[data-tip]") : null;
    tip.hidden = !mark;
    if (!mark) return;
    tip.textContent = mark.dataset.tip;
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
