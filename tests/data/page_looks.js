// What a test asks of a page in a browser; each function is called by its name.

// Every text on the page with too little contrast: [texts seen, [[text, ratio], ...]].
function contrast(least) {
  const parts = (said) => said.match(/[0-9.]+/g).map(Number);
  const light = (said) => {
    const [r, g, b] = parts(said).map((v) => v / 255)
      .map((v) => (v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const behind = (node) => {
    for (let at = node; at; at = at.parentElement) {
      const said = getComputedStyle(at).backgroundColor;
      if ((parts(said)[3] ?? 1) > 0) { return said; }
    }
    return "rgb(255, 255, 255)";
  };
  const walk = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  const found = [];
  let seen = 0;
  while (walk.nextNode()) {
    const text = walk.currentNode.data.trim(), node = walk.currentNode.parentElement;
    if (!text || !node.checkVisibility() || ["STYLE", "SCRIPT", "title"].includes(node.tagName)) {
      continue;
    }
    seen += 1;
    const style = getComputedStyle(node);
    const ink = light(node.tagName === "text" ? style.fill : style.color);
    const paper = light(behind(node));
    const ratio = (Math.max(ink, paper) + 0.05) / (Math.min(ink, paper) + 0.05);
    if (ratio < least) { found.push([text, ratio]); }
  }
  return [seen, found];
}

// Every box that reaches beyond the window and is in no box that scrolls.
function beyond() {
  return [...document.querySelectorAll("body *")].filter((each) => {
    const box = each.getBoundingClientRect();
    return box.width && box.right > innerWidth + 1 && !each.closest(".scroll")
      && !each.closest("svg");
  }).map((each) => `${each.tagName}.${each.className}: ${each.textContent.slice(0, 60)}`);
}

// Every text of a plot of which a part is outside of the window.
function cut() {
  return [...document.querySelectorAll("svg text")].filter((each) => {
    const box = each.getBoundingClientRect();
    return box.width && (box.left < -0.5 || box.right > innerWidth + 0.5)
      && !each.closest(".scroll");
  }).map((each) => each.textContent);
}

// How far the text of a tick stands from its line, in pixels, at most.
function ticks() {
  return Math.max(...[...document.querySelectorAll(".forest")].flatMap((each) => {
    const middle = (box) => (box.left + box.right) / 2;
    const texts = [...each.querySelectorAll(".axis text")]
      .map((text) => middle(text.getBoundingClientRect()));
    return [...each.querySelectorAll(".row svg")].flatMap((row) =>
      [...row.querySelectorAll(".grid")].map((line, at) =>
        Math.abs(middle(line.getBoundingClientRect()) - texts[at])));
  }));
}

// Rows of a table that are taller than the window, because a column is too narrow for its text.
function tall() {
  return [...document.querySelectorAll("tbody tr")].filter((each) =>
    each.getBoundingClientRect().height > 280).map((each) => each.textContent.slice(0, 60));
}

// What the button of the recipe says once it has been pressed.
function copied() {
  const button = document.querySelector("button.copy");
  return new Promise((done) => {
    const at = () => {
      if (button.textContent !== "Copy") { done(button.textContent); } else { setTimeout(at, 20); }
    };
    at();
  });
}
