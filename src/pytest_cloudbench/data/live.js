"use strict";
(() => {
  const state = document.getElementById("state"), button = document.getElementById("pause");
  const figures = document.getElementById("figures");
  let paused = false, misses = 0, drawn = document.getElementById("now").dataset.drawn;
  button.hidden = false;
  button.onclick = () => {
    paused = !paused;
    button.setAttribute("aria-pressed", paused);
    state.textContent = paused ? "paused" : "live";
  };
  const got = async (name) => {
    const answer = await fetch(name, { cache: "no-store" });
    if (!answer.ok) throw new Error(answer.status);
    return answer.text();
  };
  const put = (place, text) => {  // what is open, has the focus or is scrolled stays so
    const details = () => [...place.querySelectorAll("details")];
    const stops = () => [...place.querySelectorAll("a, summary, [tabindex]")];
    const open = details().map((each) => each.open), focus = stops().indexOf(document.activeElement);
    const scrolled = stops().map((each) => [each.scrollLeft, each.scrollTop]);
    place.innerHTML = text;
    details().forEach((each, at) => { if ((each.open = !!open[at])) showNumbers(each); });
    stops().forEach((each, at) => { if (scrolled[at]) [each.scrollLeft, each.scrollTop] = scrolled[at]; });
    if (focus >= 0 && stops()[focus]) stops()[focus].focus({ preventScroll: true });
  };
  const look = async () => {
    if (!paused && !document.hidden) {
      try {
        const news = new DOMParser().parseFromString(await got("now"), "text/html");
        for (const id of ["now", "all"]) put(document.getElementById(id), news.getElementById(id).innerHTML);
        if (drawn !== news.getElementById("now").dataset.drawn) {
          put(figures, await got("figures"));
          drawn = news.getElementById("now").dataset.drawn;
        }
        misses = 0;
        if (!paused && state.textContent !== "live") state.textContent = "live";
      } catch {
        if (++misses > 1) state.textContent = "no answer: the run has ended, or was stopped; below is its last state";
      }
    }
    setTimeout(look, 2000);
  };
  setTimeout(look, 2000);
})();
