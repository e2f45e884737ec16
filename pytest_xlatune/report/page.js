"use strict";
// Only a table that is wider than its box can be reached by the Tab key, to scroll it.
const updateTabStops = () => document.querySelectorAll(".scroll").forEach((box) => {
  if (box.scrollWidth > box.clientWidth) { box.tabIndex = 0; } else { box.removeAttribute("tabindex"); }
});
addEventListener("resize", updateTabStops);
updateTabStops();
document.querySelectorAll("button.copy").forEach((button) => {
  button.hidden = false;
  button.addEventListener("click", async () => {
    const code = button.parentElement.querySelector("pre");
    let isCopied = true;
    try {
      await navigator.clipboard.writeText(code.textContent);
    } catch {
      getSelection().selectAllChildren(code);
      isCopied = document.execCommand("copy");
    }
    button.textContent = isCopied ? "Copied" : "Selected: press Ctrl+C";
    setTimeout(() => { button.textContent = "Copy"; }, 3000);
  });
});
// While a sweep runs, its page is written again and again: load the new page, and show the time of the last event.
const live = document.querySelector(".live");
if (live) {
  const timeOf = (name) => Number(live.dataset[name]) * 1000;
  const span = (ms) => {
    const s = Math.max(Math.round(ms / 1000), 0);
    return s < 90 ? `${s} s` : s < 5400 ? `${Math.round(s / 60)} min` : `${(s / 3600).toFixed(1)} h`;
  };
  const clock = (ms) => new Date(ms).toLocaleString();
  const isStill = () => Date.now() - timeOf("alive") > timeOf("still");
  const showStatus = () => {
    const [since, text] = isStill()
      ? [timeOf("alive"), "No session has worked on this sweep since TIME, AGO ago. Run its command again to continue."]
      : [timeOf("event"), "Last event AGO ago, TIME. The page loads itself again."];
    live.classList.toggle("still", isStill());
    live.querySelector(".when").textContent =
      text.replace("TIME", clock(since)).replace("AGO", span(Date.now() - since));
  };
  const loaded = Date.now();
  const giveUpAfter = 7 * 86400e3; // milliseconds without a sign of life: a week
  showStatus();
  setInterval(() => {
    showStatus();
    const isDue = Date.now() - loaded > timeOf(isStill() ? "reloadstill" : "reload")
      && Date.now() - timeOf("alive") < giveUpAfter;
    // a reload would undo the selection of a reader who wants to copy something
    if (isDue && !document.hidden && getSelection().isCollapsed) { location.reload(); }
  }, 1000);
}
