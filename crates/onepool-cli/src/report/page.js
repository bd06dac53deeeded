"use strict";
// The page is whole without this: it adds themes, zoom, sorting and notes under the pointer.
(() => {
  const root = document.documentElement;
  root.classList.add("js");

  const themes = ["as the system", "light", "dark"];
  const button = document.getElementById("theme");
  const kept = (value) => {
    // A browser may keep nothing of a local file.
    try {
      return value === undefined ? localStorage.getItem("onepool-theme") : localStorage.setItem("onepool-theme", value);
    } catch {
      return null;
    }
  };
  const show = (theme) => {
    root.style.colorScheme = theme === themes[0] ? "" : theme;
    root.dataset.theme = theme;
    button.textContent = `theme: ${theme}`;
  };
  const asked = new URLSearchParams(location.search).get("theme") ?? kept();
  show(themes.includes(asked) ? asked : themes[0]);
  button.hidden = false;
  button.addEventListener("click", () => {
    const next = themes[(themes.indexOf(root.dataset.theme) + 1) % themes.length];
    show(next);
    kept(next);
  });
  // Paper is light.
  addEventListener("beforeprint", () => { root.style.colorScheme = "light"; });
  addEventListener("afterprint", () => show(root.dataset.theme));

  // Labels show where they fit.
  const boxes = [...document.querySelectorAll(".bar, .tensor")].filter((box) => box.querySelector("text"));
  const lengths = new Map();
  const fit = () => {
    const sizes = boxes.map((box) => box.querySelector("rect").getBoundingClientRect());
    boxes.forEach((box, i) => {
      const text = box.querySelector("text");
      if (!lengths.has(text)) lengths.set(text, text.getComputedTextLength());
      const fits = lengths.get(text) + 9 <= sizes[i].width && sizes[i].height >= 15;
      text.classList.toggle("hide", !fits);
    });
    for (const axis of document.querySelectorAll("svg.axis")) {
      let end = -Infinity;
      for (const text of axis.querySelectorAll("text")) {
        const box = text.getBoundingClientRect();
        const free = box.left > end + 4;
        text.classList.toggle("hide", !free);
        if (free) end = box.right;
      }
    }
  };
  fit();
  let pending = 0;
  addEventListener("resize", () => {
    cancelAnimationFrame(pending);
    pending = requestAnimationFrame(fit);
  });

  for (const zoom of document.querySelectorAll(".zoom")) {
    zoom.hidden = false;
    const scroll = document.querySelector(".scroll");
    const wide = document.querySelector(".wide");
    zoom.firstElementChild.setAttribute("aria-pressed", "true");
    zoom.addEventListener("click", (event) => {
      const factor = Number(event.target.dataset.zoom);
      if (!factor) return;
      // The middle stays where it is.
      const middle = (scroll.scrollLeft + scroll.clientWidth / 2) / wide.offsetWidth;
      wide.style.width = `${factor * 100}%`;
      scroll.scrollLeft = middle * wide.offsetWidth - scroll.clientWidth / 2;
      for (const other of zoom.children) other.setAttribute("aria-pressed", String(other === event.target));
      fit();
    });
  }

  const value = (row, column) => {
    const cell = row.cells[column];
    const text = cell.dataset.v ?? cell.textContent.trim();
    const number = Number.parseFloat(text);
    return Number.isNaN(number) ? text : number;
  };
  for (const table of document.querySelectorAll("table.sortable")) {
    for (const [column, head] of [...table.tHead.rows[0].cells].entries()) {
      if (head.hasAttribute("aria-label")) continue;
      head.addEventListener("click", () => {
        const falls = head.getAttribute("aria-sort") !== "descending";
        for (const other of table.tHead.rows[0].cells) other.removeAttribute("aria-sort");
        head.setAttribute("aria-sort", falls ? "descending" : "ascending");
        const rows = [...table.tBodies[0].rows];
        rows.sort((a, b) => {
          const [x, y] = [value(a, column), value(b, column)];
          if (typeof x !== typeof y) return typeof x === "number" ? -1 : 1;
          const order = typeof x === "number" ? x - y : x.localeCompare(y);
          return falls ? -order : order;
        });
        table.tBodies[0].append(...rows);
      });
    }
  }

  // The note under the pointer takes the place of the browser's own, which comes late.
  const tip = document.getElementById("tip");
  for (const title of document.querySelectorAll("[data-bar] > title")) {
    const box = title.parentElement;
    box.setAttribute("aria-label", title.textContent);
    box.dataset.tip = title.textContent;
    title.remove();
  }
  document.addEventListener("pointermove", (event) => {
    const box = event.target.closest?.("[data-tip]");
    tip.hidden = !box;
    if (!box) return;
    tip.textContent = box.dataset.tip;
    const { offsetWidth: width, offsetHeight: height } = tip;
    const left = Math.min(event.clientX + 14, innerWidth - width - 8);
    const below = event.clientY + 18 + height < innerHeight;
    tip.style.left = `${Math.max(8, left)}px`;
    tip.style.top = `${below ? event.clientY + 18 : event.clientY - height - 12}px`;
  });
})();
