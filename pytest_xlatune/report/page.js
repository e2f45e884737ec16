"use strict";
// A table that fits its place needs no stop of the tabulator key.
const fit = () => document.querySelectorAll(".scroll").forEach((box) => {
  if (box.scrollWidth > box.clientWidth) { box.tabIndex = 0; } else { box.removeAttribute("tabindex"); }
});
addEventListener("resize", fit);
fit();
document.querySelectorAll("button.copy").forEach((button) => {
  button.hidden = false;
  button.addEventListener("click", async () => {
    const code = button.parentElement.querySelector("pre");
    let done = true;
    try {
      await navigator.clipboard.writeText(code.textContent);
    } catch {
      getSelection().selectAllChildren(code);
      done = document.execCommand("copy");
    }
    button.textContent = done ? "Copied" : "Selected: press Ctrl+C";
    setTimeout(() => { button.textContent = "Copy"; }, 3000);
  });
});
// While a sweep runs its page is written again: load that, and say since when nothing happened.
const live = document.querySelector(".live");
if (live) {
  const timeOf = (name) => Number(live.dataset[name]) * 1000;
  const span = (ms) => {
    const s = Math.max(Math.round(ms / 1000), 0);
    return s < 90 ? `${s} s` : s < 5400 ? `${Math.round(s / 60)} min` : `${(s / 3600).toFixed(1)} h`;
  };
  const clock = (ms) => new Date(ms).toLocaleString();
  const isStill = () => Date.now() - timeOf("alive") > timeOf("still");
  const tell = () => {
    const [since, text] = isStill()
      ? [timeOf("alive"), "Stands still since TIME, AGO ago: no session is at it. Its command goes on."]
      : [timeOf("event"), "Last event AGO ago, TIME. The page loads itself again."];
    live.classList.toggle("still", isStill());
    live.querySelector(".when").textContent =
      text.replace("TIME", clock(since)).replace("AGO", span(Date.now() - since));
  };
  let tried = Date.now();
  tell();
  setInterval(() => {
    tell();
    const isDue = Date.now() - tried > timeOf(isStill() ? "everystill" : "every")
      && Date.now() - timeOf("alive") < 7 * 86400e3;
    // a reader who marks a text, or copies the recipe, keeps it
    if (isDue && !document.hidden && getSelection().isCollapsed) { tried = Date.now(); location.reload(); }
  }, 1000);
}
