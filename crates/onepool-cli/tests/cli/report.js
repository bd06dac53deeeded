// Looks at a page as a person would, and writes what it found to the page.
addEventListener("load", () => {
  const found = { counts: {}, tables: {}, outside: [], overlaps: [], wide: [] };
  const all = (selector) => [...document.querySelectorAll(selector)];
  const visible = (element) => getComputedStyle(element).visibility !== "hidden" && element.getClientRects().length > 0;
  for (const selector of [".tile", ".lane", ".lane .bar", ".arena", ".tensor", ".roof circle", ".roofline", ".run", ".way", "img", "script"]) {
    found.counts[selector] = all(selector).length;
  }
  for (const table of all("table")) found.tables[table.dataset.table] = table.tBodies[0].rows.length;
  const background = () => getComputedStyle(document.body).backgroundColor;
  found.background = background();

  // Labels are within their boxes, and no two texts of a drawing overlap.
  for (const text of all(".bar > text, .tensor > text").filter(visible)) {
    const [inner, outer] = [text, text.parentElement.querySelector("rect")].map((e) => e.getBoundingClientRect());
    if (inner.right > outer.right + 1 || inner.left < outer.left - 1 || inner.bottom > outer.bottom + 2) {
      found.outside.push(text.textContent);
    }
  }
  for (const drawing of all("svg.axis, svg.roof, .offsets, .names")) {
    const boxes = [...drawing.querySelectorAll("text, span, b")].filter(visible).map((e) => [e.textContent, e.getBoundingClientRect()]);
    boxes.forEach(([a, p], i) => boxes.slice(i + 1).forEach(([b, q]) => {
      const across = Math.min(p.right, q.right) - Math.max(p.left, q.left);
      const down = Math.min(p.bottom, q.bottom) - Math.max(p.top, q.top);
      if (across > 1 && down > 3) found.overlaps.push(`${a} | ${b}`);
    }));
  }
  // Nothing makes the page wider than the window; on a narrow one wide tables scroll alone.
  const { scrollWidth, clientWidth } = document.documentElement;
  if (scrollWidth > clientWidth) found.wide.push([scrollWidth, clientWidth]);

  const theme = document.getElementById("theme");
  found.themes = [];
  for (let i = 0; i < 3; i++) {
    theme.click();
    found.themes.push([theme.textContent, background()]);
  }
  const zoom = document.querySelector("[data-zoom='16']");
  if (zoom) {
    zoom.click();
    const [wide, scroll] = [".wide", ".scroll"].map((s) => document.querySelector(s));
    found.zoom = Math.round(wide.offsetWidth / scroll.clientWidth);
    document.querySelector("[data-zoom='1']").click();
  }
  const nodes = document.querySelector("table[data-table=nodes]");
  if (nodes) {
    nodes.closest("details").open = true;
    const column = [...nodes.tHead.rows[0].cells].find((cell) => cell.textContent === "moved");
    const values = () => [...nodes.tBodies[0].rows].map((row) => Number(row.cells[column.cellIndex].dataset.v));
    column.click();
    found.falling = values().every((v, i, all) => i === 0 || all[i - 1] >= v);
    column.click();
    found.rising = values().every((v, i, all) => i === 0 || all[i - 1] <= v);
    nodes.closest("details").open = false;
  }
  const bar = document.querySelector(".lane [data-tip]");
  if (bar) {
    const box = bar.getBoundingClientRect();
    bar.dispatchEvent(new PointerEvent("pointermove", { bubbles: true, clientX: box.left + 1, clientY: box.top + 1 }));
    const tip = document.getElementById("tip");
    found.tip = tip.hidden ? "" : tip.textContent;
    document.body.dispatchEvent(new PointerEvent("pointermove", { bubbles: true }));
    found.gone = tip.hidden;
  }
  const out = document.createElement("pre");
  out.id = "found";
  out.hidden = true;
  out.textContent = JSON.stringify(found);
  document.body.append(out);
});
