// The cross-hair: reads the table behind a plot, by pointer or by the arrow keys. Nothing is told that the table does not tell.
(() => {
  "use strict";
  const read = new Map(); // plot's id → the row that somebody reads: its head, and its place on the axis
  const heads = (plot) => [...plot.querySelectorAll("th[data-at]")];
  function show(svg, index) {
    const plot = svg.closest(".plot"), rows = heads(plot), row = rows[Math.max(0, Math.min(rows.length - 1, index))];
    if (!row) return;
    const x = +svg.dataset.left + row.dataset.at * (svg.dataset.right - svg.dataset.left), size = svg.viewBox.baseVal;
    const cross = svg.querySelector(".cross") ?? svg.appendChild(document.createElementNS(svg.namespaceURI, "path"));
    cross.setAttribute("class", "cross"); cross.setAttribute("d", `M${x} 0V${size.height - 30}`);
    svg.dataset.row = rows.indexOf(row);
    read.set(plot.id, { text: row.textContent, at: row.dataset.at });
    const names = [...plot.querySelectorAll("thead th")].map((one) => one.textContent);
    plot.querySelector(".plot-read").textContent =
      [...row.parentNode.children].map((cell, i) => `${names[i]}: ${cell.textContent}`).join(" · ");
  }
  // The row that somebody reads stays read when the page refreshes itself: by its plot and its place on the axis.
  document.addEventListener("htmx:after:swap", () => setTimeout(() => {
    for (const [id, { text, at }] of read) {
      const svg = document.querySelector(`#${CSS.escape(id)} > svg`), rows = svg ? heads(svg.closest(".plot")) : [];
      const same = rows.findIndex((row) => row.textContent === text);
      const near = (best, row, i) => (Math.abs(row.dataset.at - at) < Math.abs(rows[best].dataset.at - at) ? i : best);
      if (rows.length) show(svg, same < 0 ? rows.reduce(near, 0) : same);
    }
  }));
  document.addEventListener("pointermove", (event) => {
    const svg = event.target.closest?.(".plot > svg[data-left]"), rows = svg && heads(svg.closest(".plot"));
    if (!rows?.length) return;
    const box = svg.getBoundingClientRect(), x = ((event.clientX - box.left) / box.width) * svg.viewBox.baseVal.width;
    const at = (x - svg.dataset.left) / (svg.dataset.right - svg.dataset.left);
    show(svg, rows.reduce((best, row, i) => (Math.abs(row.dataset.at - at) < Math.abs(rows[best].dataset.at - at) ? i : best), 0));
  });
  document.addEventListener("keydown", (event) => {
    const svg = event.target.closest?.(".plot > svg"), last = svg && heads(svg.closest(".plot")).length - 1;
    const now = +(svg?.dataset.row ?? -1), to = { ArrowRight: now + 1, ArrowLeft: now - 1, Home: 0, End: last }[event.key];
    if (!svg || last < 0 || to === undefined) return;
    event.preventDefault();
    show(svg, to);
  });
  // Numbers that somebody unfolded stay as they were unfolded: the page that refreshes itself leaves them alone.
  document.addEventListener("toggle", (event) => {
    if (event.target.matches?.(".plot details")) event.target.toggleAttribute("hx-morph-skip", event.target.open);
  }, true);
})();
